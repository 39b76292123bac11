// Writes a Megatron shard of made-up documents: write_sample_shard PREFIX SEED VOCABULARY. For
// tests/python/test_megatron_bytes.py, which makes the same documents and compares the bytes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "formats/megatron_shard.h"

int main(int argument_count, char** arguments) {
  if (argument_count != 4) return EXIT_FAILURE;
  uint64_t state = std::stoull(arguments[2]);
  const auto vocabulary = std::stoll(arguments[3]);
  longspan::MegatronWriter writer(arguments[1], vocabulary);
  for (int number = 0; number < 20; ++number) {
    std::vector<int32_t> document;
    for (int left = 1 + number * 7 % 13; left > 0; --left) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      document.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocabulary)));
    }
    writer.append(document);
    writer.end_document();
  }
  writer.publish();
  return EXIT_SUCCESS;
}
