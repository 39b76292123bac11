#include "failure.h"

#include <iostream>

#include "base/error.h"

namespace longspan {
namespace {

constexpr int kUserErrorCode = 2;
constexpr int kDistributedErrorCode = 3;
constexpr int kInternalErrorCode = 70;

int report(const char* kind, const std::exception& error, int code) {
  std::cout << std::flush;
  std::cerr << "longspan: " << kind << ": " << error.what() << std::endl;
  return code;
}

}  // namespace

int report_failure(const std::exception& error) {
  if (dynamic_cast<const UserError*>(&error) != nullptr)
    return report("error", error, kUserErrorCode);
  if (dynamic_cast<const DistributedError*>(&error) != nullptr) {
    return report("distributed failure", error, kDistributedErrorCode);
  }
  return report("internal error", error, kInternalErrorCode);
}

}  // namespace longspan
