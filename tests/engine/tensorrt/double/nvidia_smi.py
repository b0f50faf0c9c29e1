"""``nvidia-smi --query-gpu=index,uuid,compute_cap,name``: one GPU for each SM of DOUBLE_SMI (90).

An SM of ``?`` is a GPU that does not answer, and ``!`` one whose name is damaged too.
"""

import os
import sys

if sys.argv[1:] != ["--query-gpu=index,uuid,compute_cap,name", "--format=csv,noheader"]:
    sys.exit("this double answers one question only")
sms = os.environ.get("DOUBLE_SMI", "90")
for index, sm in enumerate(sms.split(",") if sms else []):
    capability = f"{sm[:-1]}.{sm[-1]}" if sm.isdigit() else "[N/A]"
    line = f"{index}, GPU-{index:08d}-0000, {capability}, NVIDIA GPU of SM {sm}\n"
    sys.stdout.buffer.write(line.encode() if sm != "!" else line.encode().replace(b"!", b"\xff\xfe"))
