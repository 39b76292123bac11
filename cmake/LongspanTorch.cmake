# Finds the libtorch inside an installed PyTorch wheel without importing torch, and declares
# torch::cpu, with its CUDA half if LONGSPAN_CUDA asks for it. find_package(Torch) is not used: it
# pulls CUDA detection and flags into every target.

if(NOT Python3_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python3_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c
          "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)"
  OUTPUT_VARIABLE LONGSPAN_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE torch_result ERROR_QUIET)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "No torch wheel in ${Python3_EXECUTABLE}. Run scripts/setup.sh, or pass "
          "-DPython3_EXECUTABLE=<venv>/bin/python, or build the core alone with -DLONGSPAN_TORCH=OFF.")
endif()
file(STRINGS ${LONGSPAN_TORCH_DIR}/version.py torch_version REGEX "^__version__")
if(NOT torch_version MATCHES "2\\.11\\.")
  message(FATAL_ERROR "longspan is pinned to torch 2.11, found ${torch_version} in ${LONGSPAN_TORCH_DIR}")
endif()
message(STATUS "libtorch: ${LONGSPAN_TORCH_DIR} (${torch_version})")

add_library(torch::c10 SHARED IMPORTED)
set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${LONGSPAN_TORCH_DIR}/lib/libc10.so)
add_library(torch::cpu SHARED IMPORTED)
set_target_properties(torch::cpu PROPERTIES IMPORTED_LOCATION ${LONGSPAN_TORCH_DIR}/lib/libtorch_cpu.so)
target_include_directories(torch::cpu SYSTEM INTERFACE ${LONGSPAN_TORCH_DIR}/include
                           ${LONGSPAN_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(torch::cpu INTERFACE torch::c10)
if(LONGSPAN_CUDA)
  # Nothing refers to libtorch_cuda: its kernels register themselves when it is loaded, so the linker
  # must not drop it.
  file(GLOB wheel_cudart ${LONGSPAN_TORCH_DIR}/../nvidia/cu13/lib/libcudart.so.13)
  if(NOT wheel_cudart OR NOT EXISTS ${LONGSPAN_TORCH_DIR}/lib/libtorch_cuda.so)
    message(FATAL_ERROR "The PyTorch wheel in ${LONGSPAN_TORCH_DIR} lacks its CUDA libraries: install "
            "torch with all its dependencies, or build with -DLONGSPAN_CUDA=OFF")
  endif()
  target_compile_definitions(torch::cpu INTERFACE LONGSPAN_CUDA=1)
  target_link_libraries(torch::cpu INTERFACE longspan_cuda_headers ${wheel_cudart}
    -Wl,--push-state,--no-as-needed ${LONGSPAN_TORCH_DIR}/lib/libtorch_cuda.so
    ${LONGSPAN_TORCH_DIR}/lib/libc10_cuda.so -Wl,--pop-state)
else()
  target_compile_definitions(torch::cpu INTERFACE LONGSPAN_CUDA=0)
endif()
# libtorch_cpu names libraries of the full wheel set that the small set does not need at run time.
target_link_options(torch::cpu INTERFACE -Wl,--allow-shlib-undefined)
