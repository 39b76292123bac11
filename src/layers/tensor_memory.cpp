#include "layers/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

namespace longspan {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallBytes = size_t{256} << 10;
constexpr size_t kRoundBytes = size_t{64} << 10;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kSlackBytes = size_t{64} << 20;

struct Block {
  void* address = nullptr;
  size_t bytes = 0;
};

class BlockCache {
 public:
  void* allocate(size_t bytes) {
    const size_t rounded = (bytes + kRoundBytes - 1) / kRoundBytes * kRoundBytes;
    const std::scoped_lock lock(mutex_);
    Block block = take_kept(rounded);
    if (block.address == nullptr) {
      // Make room first: the promise holds at every moment.
      trim(bound(std::max(used_peak_, used_ + rounded)) - rounded);
      block = map(rounded);
    }
    used_ += block.bytes;
    used_peak_ = std::max(used_peak_, used_);
    sizes_.emplace(block.address, block.bytes);
    return block.address;
  }

  // Whether the block is one of these; if so it is free now.
  bool free(void* address) {
    const std::scoped_lock lock(mutex_);
    const auto found = sizes_.find(address);
    if (found == sizes_.end()) return false;
    const Block block{address, found->second};
    sizes_.erase(found);
    used_ -= block.bytes;
    kept_.push_back(block);
    kept_by_size_.emplace(block.bytes, std::prev(kept_.end()));
    return true;
  }

  TensorMemoryUse use() const {
    const std::scoped_lock lock(mutex_);
    return {static_cast<int64_t>(used_), static_cast<int64_t>(used_peak_),
            static_cast<int64_t>(mapped_), static_cast<int64_t>(mapped_peak_)};
  }

 private:
  using Kept = std::list<Block>;  // oldest first

  static size_t bound(size_t used_peak) { return used_peak + used_peak / 8 + kSlackBytes; }

  // The smallest kept block that is large enough and at most a quarter too large.
  Block take_kept(size_t bytes) {
    const auto found = kept_by_size_.lower_bound(bytes);
    if (found == kept_by_size_.end() || found->first > bytes + bytes / 4) return {};
    const Block block = *found->second;
    kept_.erase(found->second);
    kept_by_size_.erase(found);
    return block;
  }

  // Returns kept blocks to the system until no more than `bytes` are mapped.
  void trim(size_t bytes) {
    while (mapped_ > bytes && !kept_.empty()) {
      const auto oldest = kept_.begin();
      auto entry = kept_by_size_.lower_bound(oldest->bytes);
      while (entry->second != oldest) ++entry;
      kept_by_size_.erase(entry);
      munmap(oldest->address, oldest->bytes);
      mapped_ -= oldest->bytes;
      kept_.erase(oldest);
    }
  }

  Block map(size_t bytes) {
    void* address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      trim(0);
      address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (address == MAP_FAILED) throw std::bad_alloc();
    // A request the kernel may refuse: then pages are small, and nothing else changes.
    if (bytes >= kHugePageBytes) madvise(address, bytes, MADV_HUGEPAGE);
    mapped_ += bytes;
    mapped_peak_ = std::max(mapped_peak_, mapped_);
    return {address, bytes};
  }

  mutable std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;  // of blocks in use
  Kept kept_;
  std::multimap<size_t, Kept::iterator> kept_by_size_;
  size_t used_ = 0;
  size_t used_peak_ = 0;
  size_t mapped_ = 0;
  size_t mapped_peak_ = 0;
};

// Never destroyed: tensors with static lifetime may free after main.
BlockCache& block_cache() {
  static auto* const cache = new BlockCache;
  return *cache;
}

void* allocate_small(size_t bytes) {
  void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void free_any(void* data) {
  if (!block_cache().free(data)) std::free(data);
}

class KeepingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0            ? nullptr
                 : bytes < kSmallBytes ? allocate_small(bytes)
                                       : block_cache().allocate(bytes);
    return {data, data, &free_any, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

std::once_flag kept_once;

}  // namespace

void keep_tensor_memory() {
  std::call_once(kept_once, [] {
    static auto* const allocator = new KeepingAllocator;
    c10::SetCPUAllocator(allocator, /*priority=*/1);
  });
}

TensorMemoryUse tensor_memory_use() {
  return block_cache().use();
}

}  // namespace longspan
