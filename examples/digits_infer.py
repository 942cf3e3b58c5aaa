# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Run the digits artifact with nothing but IREE's runtime and NumPy.

python examples/digits_infer.py out/digits
"""

import hashlib
import json
import pathlib
import sys

import iree.runtime as iree
import numpy as np


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: 8 bytes of header length, a JSON header, then the
    numbers.
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    arrays = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            raw = np.frombuffer(data[8 + length + begin : 8 + length + end], np.float32)
            arrays[name] = raw.reshape(about["shape"])
    return arrays


def picture(image: np.ndarray) -> list[str]:
    """An 8 x 8 image as eight lines of text."""
    shades = " .:-=+*#%@"
    return ["".join(shades[min(int(v * 10), 9)] * 2 for v in row) for row in image[..., 0]]


def main(folder: pathlib.Path) -> None:
    manifest = json.loads((folder / "digits.json").read_text())
    files = {name: (folder / name).read_bytes() for name in manifest["files"]}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256(files[name]).hexdigest() == digest, f"{name} is damaged"
    weights = read_safetensors(files["digits.safetensors"])
    config = iree.Config(manifest["driver"])
    module = iree.load_vm_module(
        iree.VmModule.copy_buffer(config.vm_instance, files["digits.vmfb"]), config
    )

    test = np.load(folder / "test.npz")
    inputs = manifest["functions"][0]["inputs"]
    arguments = [weights[i["name"]] if i["role"] == "parameter" else test["images"] for i in inputs]
    found = module.predict(*arguments).to_host()

    print(f"test accuracy {np.mean(found == test['labels']):.4f}, by IREE's runtime alone")
    loaded = [name for name in ("gradopt", "torch_mlir", "iree.compiler") if name in sys.modules]
    print(f"of gradopt and compilers, loaded here: {', '.join(loaded) or 'nothing'}")
    for start in (0, 5):
        pictures = [picture(image) for image in test["images"][start : start + 5]]
        print()
        print("   ".join(f"predicted {d}".ljust(16) for d in found[start : start + 5]))
        for line in zip(*pictures, strict=True):
            print("   ".join(line))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "out/digits"))
