// Counter-based random streams keyed by (seed, purpose, index), never by rank or thread, so that
// every layout of ranks draws the same numbers.
//
//   RandomStream stream(seed, "document order", epoch);
//   const uint64_t die = stream.below(6);
//
// Values: a stream belongs to one thread. Two streams with different keys are independent; the same
// key gives the same numbers on every machine.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace longspan {

class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view purpose, uint64_t index = 0);

  uint64_t next();
  // Uniform in [0, bound); bound >= 1. Without modulo bias.
  uint64_t below(uint64_t bound);
  // Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high);
  // Uniform in [0, 1), 53 bits.
  double uniform();
  // Standard normal (Box-Muller; two uniforms for each pair of values).
  double normal();
  // A permutation of 0 .. count-1 (Fisher-Yates).
  std::vector<int64_t> permutation(int64_t count);

 private:
  uint64_t state_;
  double spare_normal_ = 0;
  bool has_spare_normal_ = false;
};

// 64-bit FNV-1a of the bytes: fingerprints of text and plans, not a cryptographic hash.
uint64_t hash_bytes(std::string_view bytes, uint64_t start = 0xcbf29ce484222325ULL);

}  // namespace longspan
