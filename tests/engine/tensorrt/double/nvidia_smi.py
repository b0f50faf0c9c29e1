"""``nvidia-smi --query-gpu=index,uuid,compute_cap,name``: one GPU for each SM of DOUBLE_SMI (90)."""

import os
import sys

if sys.argv[1:] != ["--query-gpu=index,uuid,compute_cap,name", "--format=csv,noheader"]:
    sys.exit("this double answers one question only")
sms = os.environ.get("DOUBLE_SMI", "90")
for index, sm in enumerate(sms.split(",") if sms else []):
    print(f"{index}, GPU-{index:08d}-0000, {sm[:-1]}.{sm[-1]}, NVIDIA GPU of SM {sm}")
