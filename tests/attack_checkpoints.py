"""Attacks on checkpoints, by hand: flipped bits, and processes that are killed while they save.

    python tests/attack_checkpoints.py [FLIPS [KILLS]]      # 3000 and 20

A third of the flips each goes into the values, into the header of the same file, and into neurocoder.json. The tests of
checkpoints use the functions.
"""

import contextlib
import hashlib
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import neurocoder as nc

TENSORS, CONFIG = "neurocoder.safetensors", "neurocoder.json"


def plain():
    """A model with a buffer, an alias and layers to recode."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    return model.append(model[4])


def coded():
    """The same, with programs in two of them."""
    return nc.recode(plain(), {"0": nc.ProgramConfig(slots=6, hidden=4), "4": nc.MixtureConfig(experts=3)})


def flipped(content, bit):
    """These bytes with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def header_length(content):
    """Where the values of a safetensors file begin."""
    return 8 + struct.unpack("<Q", content[:8])[0]


def places(folder):
    """By what they hold: the file and its bits."""
    tensors, config = folder / TENSORS, folder / CONFIG
    begin = 8 * header_length(tensors.read_bytes())
    return {
        "values": (tensors, range(begin, 8 * tensors.stat().st_size)),
        "header": (tensors, range(begin)),
        "neurocoder.json": (config, range(8 * config.stat().st_size)),
    }


def signed(config, tensors):
    """The text of a config with digests, as the documentation says."""
    rows = [
        [name, str(one.dtype), list(one.shape), hashlib.sha256(one.flatten().view(torch.uint8).numpy()).hexdigest()]
        for name, one in sorted(tensors.items())
    ]
    kept = {name: value for name, value in config.items() if name not in ("tensors", "digest")}
    text = json.dumps({**kept, "tensors": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}, indent=2)
    return json.dumps({**json.loads(text), "digest": hashlib.sha256(text.encode()).hexdigest()}, indent=2)


def forge(folder, change):
    """Change the config and the tensors of a checkpoint, with valid digests; or put another text in its place."""
    file = folder / TENSORS
    tensors = load_file(file)
    with safe_open(file, "pt") as content:
        config = json.loads(content.metadata()["neurocoder"])
    text = change(config, tensors)
    save_file(tensors, file, {"neurocoder": text if isinstance(text, str) else signed(config, tensors)})


def flips(folder, count, draw):
    """How many of these flips loaded, by place: {place: (loaded, tried)}."""
    nc.save(coded(), folder)
    found = {}
    for place, (file, bits) in places(folder).items():
        content, loaded = file.read_bytes(), 0
        tried = draw.sample(bits, min(len(bits), count // 3))
        for bit in tried:
            file.write_bytes(flipped(content, bit))
            with contextlib.suppress(nc.CheckpointError):
                nc.load(folder, plain())
                loaded += 1
        file.write_bytes(content)
        nc.load(folder, plain())
        found[place] = (loaded, len(tried))
    return found


def filled(value):
    """A model of 16 MB in which every number is this one."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def leftovers(folder):
    """The temporary folders of saves."""
    return list(folder.glob(".saving-*"))


def save_for_ever(folder):
    """Save one number and then the other, until killed."""
    models = [filled(0.0), filled(1.0)]
    print("ready", flush=True)
    while True:
        for model in models:
            nc.save(model, folder)


def kills(folder, count, draw):
    """After each kill the checkpoint loads, whole; after the next save nothing is left. Ends after so many that left a
    folder, and returns the number of kills."""
    models, left, tried = {0.0: filled(0.0), 1.0: filled(1.0)}, 0, 0
    nc.save(models[0.0], folder)
    while left < count:
        process = subprocess.Popen([sys.executable, __file__, "save", folder], stdout=subprocess.PIPE)
        process.stdout.readline()
        while not leftovers(folder):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.04))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left, tried = left + bool(leftovers(folder)), tried + 1
        values = torch.cat([one.flatten() for one in nc.load(folder, filled(2.0)).state_dict().values()])
        assert values.unique().tolist() in ([0.0], [1.0]), "the checkpoint is of two saves"
        value = 1 - values[0].item()
        nc.save(models[value], folder)
        assert sorted(one.name for one in folder.iterdir()) == [CONFIG, TENSORS], list(folder.iterdir())
        assert nc.load(folder, filled(2.0))[0].bias[0] == value
    return tried


def main():
    if sys.argv[1:2] == ["save"]:
        save_for_ever(Path(sys.argv[2]))
    given = [int(word) for word in sys.argv[1:]]
    count, times = given + [3000, 20][len(given) :]
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for place, (loaded, tried) in flips(Path(folder), count, draw).items():
            print(f"{place}: {loaded} of {tried} flipped bits load")
    with tempfile.TemporaryDirectory() as folder:
        tried = kills(Path(folder), times, draw)
    print(f"{tried} kills, {times} of which left a folder: every checkpoint loads whole, and the next save cleans up")


if __name__ == "__main__":
    main()
