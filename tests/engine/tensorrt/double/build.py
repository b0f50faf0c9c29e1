"""``trtllm-build`` as far as arguments, checkpoints, configurations and files go; it compiles nothing.

The environment says which one it is and what goes wrong:

    DOUBLE_VERSION  of TensorRT-LLM (1.2.1)       DOUBLE_SM    of the GPU (90)     DOUBLE_GPUS  how many (8)
    DOUBLE_WITHOUT  options it lacks, by comma    DOUBLE_FAIL  see ``_fail`` and ``_damage``
    DOUBLE_WRITES   KEY=VALUE: a dotted key of config.json that is written wrongly (VALUE is JSON)
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import loader
import rewrite
from flags import parser_of

VERSION = os.environ.get("DOUBLE_VERSION", "1.2.1")
LINE = ".".join(VERSION.split(".")[:2])
SM = int(os.environ.get("DOUBLE_SM", "90"))
GPUS = int(os.environ.get("DOUBLE_GPUS", "8"))
FAIL = os.environ.get("DOUBLE_FAIL", "")


def say(level, text):
    print(f"[TRT-LLM] [{level}] {text}", flush=True)


def main():
    print(f"[TensorRT-LLM] TensorRT-LLM version: {VERSION}", flush=True)
    without = os.environ.get("DOUBLE_WITHOUT", "").split(",")
    args = parser_of(LINE, without).parse_args()
    rewrite.reject(args, SM, LINE)
    out, checkpoint = Path(args.output_dir), Path(args.checkpoint_dir)
    out.mkdir(parents=True, exist_ok=True)
    workers = min(GPUS, args.workers)
    if workers == 0:
        raise ValueError("max_workers must be greater than 0")
    config = json.loads((checkpoint / "config.json").read_text())
    loader.check_config(config)
    size, mine = (
        int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")),
        int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
    )
    for rank in range((config.get("mapping") or {}).get("world_size", 1)):
        if rank % size == mine:
            build(args, config, checkpoint, out, rank)
    if mine == 0:
        Path(args.output_timing_cache).write_bytes(b"timing")
    say("I", "Total time of building all engines: 00:00:00")


def build(args, config, checkpoint, out, rank):
    path = checkpoint / f"rank{rank}.safetensors"
    loader.check_rank(config, path, rank)
    built = rewrite.engine_config(args, config, SM, LINE, VERSION)
    say("I", f"Build TensorRT engine Unnamed Network {rank}")
    _fail(out, rank)
    if rank == 0:
        (out / "config.json").write_text(json.dumps(_falsified(built), indent=4))
    for index, folder in enumerate(
        args.lora_dir or [] if built["build_config"]["lora_config"]["lora_dir"] else []
    ):
        target = out / "lora" / str(index)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(folder) / "adapter_config.json", target)
        shutil.copy2(Path(folder) / "adapter_model.safetensors", target)
    is_bare = args.strip_plan or args.fast_build
    content = b"plan:" + bytes([rank + 1]) * 200 if is_bare else b"ftrt" + path.read_bytes() + b"end"
    (out / f"rank{rank}.engine").write_bytes(_damaged(content))
    if args.fast_build and FAIL != "no-managed":
        (out / f"rank{rank}_managed_weights.safetensors").write_bytes(_damaged(path.read_bytes()))
    if FAIL == "missing-rank" and rank > 0:
        (out / f"rank{rank}.engine").unlink()


def _fail(out, rank):
    """End as real builders do."""
    if FAIL == "oom":
        (out / f"rank{rank}.engine").write_bytes(b"ftrt")
        os.kill(os.getpid(), signal.SIGKILL)
    if FAIL == "worker-oom":
        raise RuntimeError("BrokenProcessPool: A process in the process pool was terminated abruptly")
    if FAIL == "gpu-oom":
        raise RuntimeError("[TRT] [E] Cuda Runtime (out of memory): Requested size was 17179869184 bytes.")
    if FAIL == "no-kernel":
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    if FAIL == "disk":
        raise OSError(28, "No space left on device")
    if FAIL == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAIL == "hang":
        worker = subprocess.Popen(["sleep", "600"])
        say("I", f"worker {worker.pid}")
        time.sleep(600)


def _damaged(content):
    if FAIL == "half-rank":
        return content[: len(content) // 4]
    if FAIL == "empty-rank":
        return b""
    return content[: len(content) // 2] + bytes(len(content) // 2) if FAIL == "zero-rank" else content


def _falsified(config):
    wrong = os.environ.get("DOUBLE_WRITES")
    if not wrong:
        return config
    key, _, value = wrong.partition("=")
    *parents, last = key.split(".")
    place = config
    for name in parents:
        place = place[name]
    place[last] = json.loads(value)
    return config


if __name__ == "__main__":
    sys.exit(main())
