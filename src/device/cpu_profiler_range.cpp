#include "device/profiler_range.h"

namespace longspan {

ProfilerRange::ProfilerRange(const std::string&) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace longspan
