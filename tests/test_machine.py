"""Detection of CPU cores, CPU instructions and accelerators, independent of the test machine."""

import os

import pytest

from roformer_tf import machine


@pytest.fixture
def cpu_info(tmp_path, monkeypatch):
    """cpu_info(text): replace the CPU's description, and unset oneDNN's environment variables."""
    for name in machine.ISA_LIMITS:
        monkeypatch.delenv(name, raising=False)

    def write(text):
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")

    return write


def test_cores_are_those_of_the_process_and_of_its_container(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5, 7}, raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "CPU_QUOTA", quota)
    for text, want in (("150000 100000", 2), ("max 100000", 4), ("900000 100000", 4), ("1 100", 1)):
        quota.write_text(text)
        assert machine.usable_cores() == want
    quota.unlink()
    assert machine.usable_cores() == 4


@pytest.mark.parametrize(
    ("flags", "limit", "want"),
    [
        ("fma avx2 avx512_bf16", None, True),
        ("amx_bf16 avx512f", None, True),
        ("avx2 avx512_vnni", None, False),
        ("avx512_bf16", "AVX2", False),
        ("avx512_bf16", "AVX512_CORE_VNNI", False),
        ("avx512_bf16", "AVX512_CORE_BF16", True),
        ("avx512_bf16", "default", True),
    ],
)
def test_bfloat16_needs_instructions_that_are_not_disabled(
    flags, limit, want, cpu_info, monkeypatch
):
    cpu_info(f"processor : 0\nflags\t\t: fpu {flags}\n")
    for name in machine.ISA_LIMITS if limit else ():
        monkeypatch.setenv(name, limit)
    assert machine.multiplies_bfloat16() is want


def test_a_system_without_information_has_no_instructions(cpu_info, tmp_path, monkeypatch):
    cpu_info("")
    assert machine.instructions() == set()
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert machine.instructions() == set()


def test_a_hidden_accelerator_is_not_used(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "ACCELERATORS", (str(tmp_path / "nvidiactl"),))
    assert not machine.has_accelerator()
    (tmp_path / "nvidiactl").touch()
    assert machine.has_accelerator()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not machine.has_accelerator()
