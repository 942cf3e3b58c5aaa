# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What IREE compiles for each target: every variant by a small module, rows of the op table for
CUDA assembled by ptxas, those for a portable CPU and for the interpreter run.
"""

import re
import shutil
import struct
import subprocess
from typing import Any

import gradopt as go
import numpy as np
import pytest
from gradopt.errors import DeviceError
from gradopt.lowering.target import Target, families, target
from gradopt.lowering.target_cpu import CPUS
from gradopt.runtime import present
from gradopt.runtime.compiler import Worker, compile_linalg
from gradopt.tools import check, ptxas

from .test_check import tables

pytestmark = pytest.mark.compiler

COMPILED = [
    family.make(variant)
    for family in families().values()
    if family.is_compiled
    for variant in family.variants
]
PRODUCT = """
func.func @f(%x: tensor<5x7xf32>, %y: tensor<7x3xf32>) -> tensor<5x3xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<5x3xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<5x3xf32>) -> tensor<5x3xf32>
  %0 = linalg.matmul ins(%x, %y : tensor<5x7xf32>, tensor<7x3xf32>)
      outs(%start : tensor<5x3xf32>) -> tensor<5x3xf32>
  return %0 : tensor<5x3xf32>
}
"""
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def needs_ptxas() -> None:
    if not ptxas.ptxas():
        pytest.skip(f"no ptxas: the package {ptxas.PACKAGE} is not installed, nor is it on PATH")


@pytest.mark.parametrize("where", COMPILED, ids=lambda t: t.name)
def test_every_variant_compiles(where: Target) -> None:
    """IREE knows each name of the lists; on one that it does not know its compiler crashes."""
    image = compile_linalg(PRODUCT, where, where.name)
    kind = {"cuda": b".target sm_", "metal": b"metal_stdlib", "rocm": b"\x7fELF"}
    assert kind.get(where.family, b"IREE") in image
    if where.family == "cuda" and ptxas.ptxas():
        for architecture in ptxas.architectures(where):
            ptxas.assemble(image, architecture)


# --- CUDA -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_ptxas")
@pytest.mark.parametrize(
    ("variant", "ops", "architectures"),
    [
        ("cuda", "tanh,softmax,take,scatter_set,argmax", ["sm_80", "sm_89", "sm_90"]),
        ("cuda:sm_89", "tanh,argmax", ["sm_89", "sm_90"]),
    ],
)
def test_rows_assemble(
    variant: str, ops: str, architectures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """PTX of rows and of their gradients is taken for the variant's GPUs and later ones;
    gradopt-check does so for all rows.
    """
    argv = ["--target", variant, "--ops", ops, "--dtypes", "float32", "--compile-only", "--json"]
    status = check.main(argv)
    (summary,) = tables(capsys.readouterr().out)
    total = summary[-1]
    assert status == 0 and total["compiled"] == total["rows"] > 2
    assert {k: v for k, v in total.items() if k.startswith("assembled")} == {
        f"assembled {arch}": total["rows"] for arch in architectures
    }


@pytest.mark.usefixtures("needs_ptxas")
def test_older_gpus_are_not_for_newer_code(capsys: pytest.CaptureFixture[str]) -> None:
    """What ptxas refuses is named, row by row, and the others' architectures stand."""
    argv = ["--target", "cuda:sm_89", "--ops", "tanh", "--dtypes", "float32", "--compile-only"]
    assert check.main([*argv, "--assemble", "sm_80,sm_90", "--json"]) == 1
    summary, details = tables(capsys.readouterr().out)
    assert (summary[-1]["assembled sm_80"], summary[-1]["assembled sm_90"]) == (0, 2)
    assert [d["assembled"] for d in details] == ["sm_90", "sm_90"]
    assert "ptxas for sm_80" in details[0]["why"] and ".target is higher" in details[0]["why"]


def test_cuda_without_a_device() -> None:
    """A function for CUDA is compiled where there is no GPU; running it says what is missing."""
    if present.devices()["cuda"]:
        pytest.skip("there is a CUDA device here")
    fn = go.compile(go.tanh, target="cuda")
    with pytest.raises(DeviceError, match=r"'cuda' cannot run on .*libcuda.so.*install NVIDIA's"):
        fn(X)
    miss = fn.why()
    assert miss is None or miss.source


def test_nothing_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A target without a device: status 3, and the table's title says so."""
    argv = ["--target", "metal", "--ops", "tanh", "--dtypes", "float32"]
    if "metal" in present.devices():
        pytest.skip("there is a Metal device here")
    assert check.main(argv) == 3
    said = capsys.readouterr()
    assert "rows are only compiled" in said.err
    assert "NOTHING WAS RUN" in " ".join(said.out.split())


# --- CPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "vmvx"])
def test_portable_targets_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Code for a CPU baseline, and the interpreter, against the reference."""
    if reason := present.why_not(target(name)):
        pytest.skip(reason)
    argv = ["--target", name, "--ops", "tanh,softmax,take", "--dtypes", "float32"]
    status = check.main([*argv, "--json"])
    assert status == 0, capsys.readouterr().out


def test_other_cpus_need_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for aarch64 is an ELF file for it, linked without any tool of this machine."""
    monkeypatch.setenv("PATH", "")
    where = target("cpu:aarch64")
    worker = Worker(())
    try:
        answer, image = worker.compile(PRODUCT.encode(), where.flags, 120)
    finally:
        worker.close()
    assert answer["ok"], answer
    assert machines(image) == [AARCH64]
    assert machines(compile_linalg(PRODUCT, target("cpu:x86-64-v3"), "f")) == [X86_64]


def test_readelf_agrees(tmp_path: Any) -> None:
    """An aarch64 module as readelf sees it: no other library is needed to load it."""
    if not shutil.which("readelf"):
        pytest.skip("no readelf here")
    image = compile_linalg(PRODUCT, target("cpu:neoverse-n1"), "f")
    elf = tmp_path / "f.so"
    elf.write_bytes(image[image.index(ELF) :])
    said = subprocess.run(
        ["readelf", "-h", "-d", elf], capture_output=True, text=True, check=False
    ).stdout
    assert re.search(r"Machine: +AArch64", said) and re.search(r"Type: +DYN", said)
    assert "(NEEDED)" not in said


ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian
X86_64, AARCH64 = 62, 183


def machines(image: bytes) -> list[int]:
    """The machines that the ELF files in a VMFB are for."""
    starts = [m.start() for m in re.finditer(re.escape(ELF), image)]
    return [struct.unpack_from("<H", image, start + 18)[0] for start in starts]


NAMES = {
    "bmi": "bmi1", "lzcnt": "abm", "sahf": "lahf_lm", "sse3": "pni", "sse4.1": "sse4_1",
    "sse4.2": "sse4_2", "avx512bitalg": "avx512_bitalg", "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16", "complxnum": "fcma", "crc": "crc32", "dotprod": "asimddp",
    "fp-armv8": "fp", "fp16fml": "asimdfhm", "fullfp16": "asimdhp", "jsconv": "jscvt",
    "lse": "atomics", "neon": "asimd", "rcpc": "lrcpc", "rdm": "asimdrdm",
    "sve-bitperm": "svebitperm",
}  # fmt: skip
"""LLVM's names of CPU features as /proc/cpuinfo has them, where they differ."""
NO_CODE = {
    *[
        "cmov",
        "crc32",
        "cx8",
        "fxsr",
        "mmx",
        "sse",
        "sse2",
        "x87",
    ],  # of every x86-64, or never chosen
    *[
        "adx",
        "clflushopt",
        "clwb",
        "clzero",
        "fsgsbase",
        "invpcid",
        "mwaitx",
        "pku",
        "prfchw",
        "rdpid",
        "rdpru",
        "rdrnd",
        "rdseed",
    ],
    *["sgx", "shstk", "sse4a", "wbnoinvd", "xsavec", "xsaveopt", "xsaves", "pconfig"],
    *["aes", "pclmul", "sha", "sha2", "sm4", "vaes", "vpclmulqdq"],  # ciphers
    *[
        "ccdp",
        "ccidx",
        "ccpp",
        "ete",
        "fpac",
        "mte",
        "pauth",
        "perfmon",
        "rand",
        "ras",
        "sb",
        "spe",
        "ssbs",
        "trbe",
    ],
    *["reserve-x18", "v8a", "v8.2a", "v8.4a", "v9a"],
}
"""Features that compiled tensor programs do not use."""


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "znver4", "aarch64", "neoverse-v1"])
def test_features_are_those_that_iree_compiles_for(name: str, tmp_path: Any) -> None:
    """No feature that IREE uses is missing from what the target says that it may use."""
    source = tmp_path / "f.mlir"
    source.write_text(PRODUCT)
    flags = target(f"cpu:{name}").flags
    command = ["iree-compile", source, *flags, "--compile-to=executable-sources", "-o", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r'cpu_features = "([^"]*)"', said)
    assert found
    used = {f.removeprefix("+") for f in found[1].split(",")} - NO_CODE
    assert {NAMES.get(f, f) for f in used} <= {*CPUS[name][1], "asimd", "fp"}
