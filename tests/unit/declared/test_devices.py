"""Accelerators by the names that drivers report, with dense peaks and memory."""

import pytest

from declared.devices import choose_peak, find_device, load_devices, stated_peak

REPORTED = {
    "Tesla V100-SXM2-16GB": ("V100 SXM2", 16, 125),
    "Tesla V100-SXM2-32GB": ("V100 SXM2", 32, 125),
    "Tesla V100-PCIE-32GB": ("V100 PCIe", 32, 112),
    "Tesla V100S-PCIE-32GB": ("V100S PCIe", 32, 130),
    "Tesla T4": ("T4", 16, 65),
    "NVIDIA GeForce RTX 2080 Ti": ("RTX 2080 Ti", 11, 56.9),
    "NVIDIA A10": ("A10", 24, 125),
    "NVIDIA A100-SXM4-40GB": ("A100", 40, 312),
    "A100-SXM-80GB": ("A100", 80, 312),
    "nvidia a100-sxm4-80gb": ("A100", 80, 312),
    "NVIDIA A100-PCIE-40GB": ("A100", 40, 312),
    "NVIDIA A100 80GB PCIe": ("A100", 80, 312),
    "NVIDIA GeForce RTX 3090": ("RTX 3090", 24, 71),
    "NVIDIA GeForce RTX 4090": ("RTX 4090", 24, 165.2),
    "NVIDIA L4": ("L4", 24, 121),
    "NVIDIA L40S": ("L40S", 48, 362),
    "NVIDIA H100 80GB HBM3": ("H100 SXM", 80, 989.5),
    "NVIDIA H100 PCIe": ("H100 PCIe", 80, 756.5),
    "NVIDIA H100 NVL": ("H100 NVL", 94, 835.5),
    "NVIDIA H200": ("H200 SXM", 141, 989.5),
    "NVIDIA H200 NVL": ("H200 NVL", 141, 835.5),
    "NVIDIA B200": ("B200", 180, 2250),
    "NVIDIA GB200": ("GB200", 186, 2500),
    "AMD Instinct MI210": ("MI210", 64, 181),
    "AMD INSTINCT MI250X (MCM) OAM AC MBA": ("MI250X GCD", 64, 191.5),
    "AMD Instinct MI300X": ("MI300X", 192, 1307.4),
    "AMD Instinct MI325X": ("MI325X", 256, 1307.4),
}
WITHOUT_TF32 = {*("V100 SXM2", "V100 PCIe", "V100S PCIe", "T4", "RTX 2080 Ti"), *("MI210", "MI250X GCD")}


@pytest.mark.parametrize(("reported", "expected"), REPORTED.items())
def test_reported_name_has_peak_and_memory(reported: str, expected: tuple[str, int, float]) -> None:
    device = find_device(reported)
    assert device is not None
    precision, peak = choose_peak(device.peak_tflops, "amp") or ("", 0)
    assert (device.name, device.memory_bytes, peak) == (expected[0], expected[1] * 2**30, expected[2] * 1e12)
    assert precision == ("fp16" if "bf16" not in dict(device.peak_tflops) else "bf16")


@pytest.mark.parametrize(
    "reported",
    [
        "AMD EPYC", "cpu", "", "NVIDIA A100", "H100 80GB", "NVIDIA H100", "NVIDIA A100-SXM-64GB", "NVIDIA A10G",
        "NVIDIA GH200 480GB", "NVIDIA L40", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "nvidia a100-sxm4-40gb mig 1g.5gb",
        "Tesla V100-SXM3-32GB", "AMD Instinct MI250", "NVIDIA T400 4GB", "H100-PCIe or H100-NVL",
    ],
)  # fmt: skip
def test_unclear_name_has_no_peak(reported: str) -> None:
    assert find_device(reported) is None


def test_peaks_are_dense_and_have_sources() -> None:
    assert {device.name for device in load_devices().values()} == {name for name, *_ in REPORTED.values()}
    for device in load_devices().values():
        peaks = dict(device.peak_tflops)
        assert device.source and device.url.startswith("https://")
        assert peaks["fp32"] < peaks["fp16"] and peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
        # A peak with sparsity is twice the dense one.
        assert peaks.get("fp8", 2 * peaks["fp16"]) == pytest.approx(2 * peaks["fp16"], rel=0.03)
        if device.name not in WITHOUT_TF32:
            assert peaks["tf32"] == pytest.approx(peaks["fp16"] / 2, rel=0.03)


def test_precision_without_units_has_no_peak() -> None:
    tesla = find_device("Tesla V100-SXM2-16GB")
    assert tesla is not None and choose_peak(tesla.peak_tflops, "tf32") is None
    assert stated_peak((("fp32", 1.2),), "fp32") == 1.2e12 and stated_peak((("fp32", 1.2),), "amp") is None
