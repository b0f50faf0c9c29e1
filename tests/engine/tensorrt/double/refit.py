"""``trtllm-refit``: engines and ``config.json`` are copied, with weights; nothing else is."""

import argparse
import json
import shutil
from pathlib import Path

parser = argparse.ArgumentParser(prog="trtllm-refit")
for name in ("engine_dir", "checkpoint_dir", "output_dir"):
    parser.add_argument(f"--{name}", required=True, type=Path)
parser.add_argument("--log_level", default="info")
args = parser.parse_args()

config = json.loads((args.engine_dir / "config.json").read_text())
source = json.loads((args.checkpoint_dir / "config.json").read_text())
if config["pretrained_config"]["architecture"] != source["architecture"]:
    raise RuntimeError("Engine Architecture and Checkpoint Architecture do not match.")
args.output_dir.mkdir(parents=True, exist_ok=True)
shutil.copyfile(args.engine_dir / "config.json", args.output_dir / "config.json")
for engine in args.engine_dir.glob("rank*.engine"):
    weights = (args.checkpoint_dir / f"{engine.stem}.safetensors").read_bytes()
    (args.output_dir / engine.name).write_bytes(engine.read_bytes() + weights + b"end")
