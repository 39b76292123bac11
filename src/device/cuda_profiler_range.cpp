#include <nvtx3/nvToolsExt.h>

#include "device/profiler_range.h"

namespace longspan {

ProfilerRange::ProfilerRange(const std::string& name) {
  nvtxRangePushA(name.c_str());
}

ProfilerRange::~ProfilerRange() {
  nvtxRangePop();
}

}  // namespace longspan
