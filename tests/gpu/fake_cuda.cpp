// A CUDA device without a driver, for PyTorch's builds for CPUs (fake_cuda.py). It has eight GPUs and computes nothing. Streams of
// PyTorch's C++ code are always the default stream, and events do nothing: fake_cuda.py has streams and events of Python.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
constexpr c10::DeviceIndex N_DEVICES = 8;
thread_local c10::DeviceIndex current_device = 0;
} // namespace

extern "C" {
void fake_cuda_set_device(int index) { current_device = static_cast<c10::DeviceIndex>(index); }
int fake_cuda_get_device() { return current_device; }
}

namespace c10::impl {
struct FakeCudaGuard final : DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return Device(DeviceType::CUDA, current_device); }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    current_device = device.index();
    return before;
  }
  void setDevice(Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const override { return Stream(Stream::DEFAULT, stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return N_DEVICES; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeCudaGuard);
} // namespace c10::impl

namespace at {
// PyTorch's registry knows it by this name. Without it the autograd engine finds no accelerator.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return N_DEVICES; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  int getNumGPUs() const override { return N_DEVICES; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
} // namespace at
