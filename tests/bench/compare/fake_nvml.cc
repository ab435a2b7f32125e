// Replaces NVIDIA's libnvidia-ml.so on machines without a driver. It has the functions that bench/compare/machine.py
// calls, with NVML's prototypes, and three GPUs: GPU i is busy for 10 * (i + 1) percent of the time, and i + 1 GiB of
// its memory are in use.
#include <cstdio>
#include <cstring>

namespace {

constexpr unsigned kGpus = 3;
constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6;
constexpr unsigned long long kGib = 1ull << 30;

struct Gpu {
  unsigned index;
};
Gpu gpus[kGpus] = {{0}, {1}, {2}};

}  // namespace

extern "C" {

struct nvmlUtilization_t {
  unsigned gpu, memory;
};
struct nvmlMemory_t {
  unsigned long long total, free, used;
};

int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = kGpus;
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** device) {
  if (index >= kGpus) return kInvalidArgument;
  *device = &gpus[index];
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Gpu** device) {
  for (Gpu& gpu : gpus) {
    char own[16];
    std::snprintf(own, sizeof(own), "GPU-%u", gpu.index);
    if (std::strcmp(own, uuid) == 0) {
      *device = &gpu;
      return kSuccess;
    }
  }
  return kNotFound;
}

int nvmlDeviceGetName(Gpu* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake %u", device->index);
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(Gpu* device, nvmlUtilization_t* utilization) {
  *utilization = {10 * (device->index + 1), 1};
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(Gpu* device, nvmlMemory_t* memory) {
  const unsigned long long used = (device->index + 1) * kGib;
  *memory = {80 * kGib, 80 * kGib - used, used};
  return kSuccess;
}

}  // extern "C"
