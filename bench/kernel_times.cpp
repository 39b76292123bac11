// Times of all kernels that a program queues on a GPU, without a profiler around it.
//
//   export LONGSPAN_KERNEL_TIMES=times.csv
//   export CUDA_INJECTION64_PATH=build/cuda/liblongspan_kernel_times.so
//   build/cuda/longspan train run.toml
//
// The CUDA driver loads this library into the program and calls InitializeInjection(); from then on
// CUPTI reports each kernel, copy and fill as it ends. Lines "begin_ns,end_ns,gpu,stream,name" are
// appended as reports arrive, a few times a second, so that a program that is killed leaves all but
// its last ones. bench/gpu_training.py --profile makes a table of them. Reports come on threads of
// CUPTI, one at a time.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>

namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr uint32_t kFlushPeriod_ms = 200;

std::FILE* output = nullptr;

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* reason = "unknown error";
  cuptiGetResultString(result, &reason);
  std::fprintf(stderr, "kernel times: %s: %s\n", what, reason);
  std::exit(1);
}

const std::string& readable(const char* name) {
  static std::unordered_map<std::string, std::string> known;
  const auto [found, is_new] = known.try_emplace(name);
  if (is_new) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    found->second = status == 0 ? text.get() : name;
  }
  return found->second;
}

// Records of kernels, copies and fills have these fields alike.
template <typename Record>
void write(const Record& record, const char* name) {
  std::fprintf(output, "%llu,%llu,%u,%u,%s\n", static_cast<unsigned long long>(record.start),
               static_cast<unsigned long long>(record.end), record.deviceId, record.streamId,
               readable(name).c_str());
}

void write(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return write(*kernel, kernel->name);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return write(*copy, "[copy]");
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      return write(*fill, "[fill]");
    }
    default:
      return;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* records_max) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *records_max = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) write(record);
  std::fflush(output);
  std::free(buffer);
}

}  // namespace

extern "C" int InitializeInjection();
extern "C" int InitializeInjection() {
  const char* path = std::getenv("LONGSPAN_KERNEL_TIMES");
  output = path == nullptr ? nullptr : std::fopen(path, "w");
  if (output == nullptr) {
    std::fprintf(stderr, "kernel times: LONGSPAN_KERNEL_TIMES names no file that can be written\n");
    std::exit(1);
  }
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "copies");
  check(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET), "fills");
  check(cuptiActivityFlushPeriod(kFlushPeriod_ms), "flush period");
  return 1;
}
