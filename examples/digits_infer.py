# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Run the digits artifact with nothing but IREE's runtime and NumPy: what loads it lies in its
folder.

python examples/digits_infer.py out/digits
"""

import pathlib
import sys

import numpy as np


def picture(image: np.ndarray) -> list[str]:
    """An 8 x 8 image as eight lines of text."""
    shades = " .:-=+*#%@"
    return ["".join(shades[min(int(v * 10), 9)] * 2 for v in row) for row in image[..., 0]]


def main(folder: pathlib.Path, target: str) -> None:
    sys.path.insert(0, str(folder))
    import gradopt_deploy

    model = gradopt_deploy.load(folder, target)
    data = np.load(folder.with_suffix(".npz"))
    images, labels = data["test_images"], data["test_labels"]
    accuracy = model.eval(images, labels)["accuracy"]
    print(f"test accuracy {accuracy:.4f}, by IREE's runtime alone, on {model.target}")
    loaded = [name for name in ("gradopt", "torch_mlir", "iree.compiler") if name in sys.modules]
    print(f"of gradopt and compilers, loaded here: {', '.join(loaded) or 'nothing'}")
    found = model.infer(images)["digit"]
    for start in (0, 5):
        pictures = [picture(image) for image in images[start : start + 5]]
        print()
        print("   ".join(f"predicted {d}".ljust(16) for d in found[start : start + 5]))
        for line in zip(*pictures, strict=True):
            print("   ".join(line))


if __name__ == "__main__":
    given = sys.argv[1:]
    main(pathlib.Path(given[0] if given else "out/digits"), given[1] if given[1:] else "auto")
