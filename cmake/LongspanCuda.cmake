# CUDA for the kernels: nvcc as C++20 on every CMake, own architecture flags, and no CUDA runtime of
# the toolkit: the program uses the one inside the PyTorch wheel (LongspanTorch.cmake), so there is
# one runtime in the process and it starts where no toolkit is installed.

set(LONGSPAN_CUDA_ARCHITECTURES "80;90a" CACHE STRING "GPU architectures of the kernels")
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
if(LONGSPAN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${LONGSPAN_CCACHE})
endif()
find_program(LONGSPAN_NVCC nvcc HINTS /usr/local/cuda/bin)
if(LONGSPAN_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${LONGSPAN_NVCC})
endif()
enable_language(CUDA)
# CMake 3.25 knows no C++20 for nvcc, and would append -std=c++17 behind ours.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)

# A .cu file takes gigabytes of memory: one at a time.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS nvcc=1)

# longspan_cuda_library(NAME SOURCES a.cu ... [DEPS targets ...]): static library of kernels.
function(longspan_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC longspan_flags ${ARG_DEPS})
  # Without NDEBUG an assertion inside a kernel is a call, and calls serialise tensor-core work.
  target_compile_definitions(${name} PRIVATE NDEBUG)
  target_compile_options(${name} PRIVATE -lineinfo -Xfatbin=-compress-all -Xcompiler=-Wall,-Wextra)
  foreach(arch ${LONGSPAN_CUDA_ARCHITECTURES})
    target_compile_options(${name} PRIVATE "SHELL:-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  set_target_properties(${name} PROPERTIES JOB_POOL_COMPILE nvcc)
endfunction()

# Headers of CUDA for files that g++ compiles.
get_filename_component(cuda_bin ${CMAKE_CUDA_COMPILER} DIRECTORY)
add_library(longspan_cuda_headers INTERFACE)
target_include_directories(longspan_cuda_headers SYSTEM INTERFACE ${cuda_bin}/../include)
