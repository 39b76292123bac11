#include "host_waits.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>

namespace longspan {
namespace {

thread_local int64_t waits = 0;

// The runtime's own function behind the one of this file.
template <typename Function>
Function* next(const char* name) {
  auto* found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  if (found == nullptr) std::abort();  // not linked to the runtime: nothing could run
  return found;
}

}  // namespace

int64_t host_waits() {
  return waits;
}

}  // namespace longspan

extern "C" {

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  static auto* real = longspan::next<cudaError_t(cudaStream_t)>("cudaStreamSynchronize");
  ++longspan::waits;
  return real(stream);
}

cudaError_t cudaDeviceSynchronize() {
  static auto* real = longspan::next<cudaError_t()>("cudaDeviceSynchronize");
  ++longspan::waits;
  return real();
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  static auto* real =
      longspan::next<cudaError_t(void*, const void*, size_t, cudaMemcpyKind)>("cudaMemcpy");
  ++longspan::waits;
  return real(to, from, bytes, kind);
}

}  // extern "C"
