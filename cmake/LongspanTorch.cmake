# Finds the libtorch inside an installed PyTorch wheel without importing torch, and declares
# torch::cpu. find_package(Torch) is not used: it pulls CUDA detection and flags into every target.

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
# libtorch_cpu names libraries of the full wheel set that the small set does not need at run time.
target_link_options(torch::cpu INTERFACE -Wl,--allow-shlib-undefined)
