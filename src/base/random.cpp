#include "base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "base/check.h"

namespace longspan {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

}  // namespace

uint64_t hash_bytes(std::string_view bytes, uint64_t start) {
  uint64_t hash = start;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  }
  return hash;
}

RandomStream::RandomStream(uint64_t seed, std::string_view purpose, uint64_t index)
    : state_(mix(mix(seed + kGoldenGamma) ^ mix(hash_bytes(purpose)) ^
                 mix(index * kGoldenGamma + 1))) {}

uint64_t RandomStream::next() {
  state_ += kGoldenGamma;
  return mix(state_);
}

uint64_t RandomStream::below(uint64_t bound) {
  LONGSPAN_CHECK(bound >= 1, "bound ", bound);
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t draw = next();
  while (draw >= limit) draw = next();
  return draw % bound;
}

int64_t RandomStream::between(int64_t low, int64_t high) {
  LONGSPAN_CHECK(low <= high, "low ", low, ", high ", high);
  const auto span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  return low + static_cast<int64_t>(below(span));
}

double RandomStream::uniform() {
  return static_cast<double>(next() >> 11) * 0x1.0p-53;
}

double RandomStream::normal() {
  if (has_spare_normal_) {
    has_spare_normal_ = false;
    return spare_normal_;
  }
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_normal_ = radius * std::sin(angle);
  has_spare_normal_ = true;
  return radius * std::cos(angle);
}

std::vector<int64_t> RandomStream::permutation(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t idx = order.size(); idx > 1; --idx) {
    std::swap(order[idx - 1], order[below(idx)]);
  }
  return order;
}

}  // namespace longspan
