#include "failure.h"

#include <iostream>

#include "base/error.h"
#include "base/printable.h"

namespace longspan {
namespace {

constexpr int kUserErrorCode = 2;
constexpr int kDistributedErrorCode = 3;
constexpr int kInternalErrorCode = 70;

const char* kind_of(int code) {
  if (code == kUserErrorCode) return "error";
  return code == kDistributedErrorCode ? "distributed failure" : "internal error";
}

}  // namespace

int failure_code(const std::exception& error) {
  if (dynamic_cast<const UserError*>(&error) != nullptr) return kUserErrorCode;
  if (dynamic_cast<const DistributedError*>(&error) != nullptr) return kDistributedErrorCode;
  return kInternalErrorCode;
}

int report_failure(const std::exception& error) {
  const int code = failure_code(error);
  std::cout << std::flush;
  std::cerr << "longspan: " << kind_of(code) << ": " << printable(error.what()) << std::endl;
  return code;
}

}  // namespace longspan
