// CPU memory of tensors, kept for reuse instead of returned to the system.
//
// Why: a training step allocates the same large tensors again and again. The system hands out fresh
// pages zeroed and one fault at a time, which takes longer than most element-wise operations on
// them (2.7 GB/s against 13 GB/s for a copy on the development machine). Freed blocks are kept for
// the next tensor of about that size; new ones ask for huge pages.
//
//   keep_tensor_memory();                       // once, when the program starts
//   tensor_memory_use().mapped_bytes
//
// The promise about memory: blocks in use and kept together never exceed the most that was ever in
// use at once plus an eighth (and 64 MiB); what would exceed it goes back to the system, oldest
// first. Blocks under 256 KiB are left to malloc.
// Thread contract: any thread may allocate and free, all threads share the blocks.
#pragma once

#include <cstdint>

namespace longspan {

struct TensorMemoryUse {
  int64_t used_bytes = 0;  // of blocks in use, their sizes rounded up
  int64_t used_bytes_peak = 0;
  int64_t mapped_bytes = 0;  // in use or kept
  int64_t mapped_bytes_peak = 0;
};

// From now on torch's CPU tensors come from here. Further calls do nothing. Tensors that exist
// already go back where they came from.
void keep_tensor_memory();

// Zeros before keep_tensor_memory().
TensorMemoryUse tensor_memory_use();

}  // namespace longspan
