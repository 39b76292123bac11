# Compiler settings shared by all targets, and the two functions that declare a library and a test.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(LONGSPAN_CCACHE ccache)
if(LONGSPAN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LONGSPAN_CCACHE})
  if(LONGSPAN_PRECOMPILE)  # what ccache must overlook, or it keeps nothing that includes such headers
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
    endif()
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
        ${LONGSPAN_CCACHE})
  endif()
endif()
find_program(LONGSPAN_LLD ld.lld)
if(LONGSPAN_LLD AND NOT LONGSPAN_FUZZ)
  add_link_options(-fuse-ld=lld)
endif()

add_library(longspan_flags INTERFACE)
target_compile_options(longspan_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wold-style-cast;-Wnon-virtual-dtor;-Wno-missing-field-initializers;-Werror>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns about its own inlined std::string code (GCC bug 105651).
  target_compile_options(longspan_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A loop that instrumented code cannot vectorise is only slow.
  target_compile_options(longspan_flags INTERFACE -Wno-pass-failed)
endif()
target_include_directories(longspan_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(LONGSPAN_VERIFY OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(longspan_flags INTERFACE LONGSPAN_VERIFY=1)
endif()
if(LONGSPAN_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees uninitialized values in its own std::regex once it is instrumented (GCC bug 105562).
  target_compile_options(longspan_flags INTERFACE -Wno-maybe-uninitialized)
endif()
if(LONGSPAN_SANITIZE)
  add_compile_options(-fsanitize=${LONGSPAN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LONGSPAN_SANITIZE})
endif()

if(LONGSPAN_FUZZ)
  # The libraries count their branches too: a fuzzer that does not see them finds nothing new.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

find_package(Threads REQUIRED)
target_link_libraries(longspan_flags INTERFACE Threads::Threads)

include(LongspanPrecompile)

# longspan_library(NAME SOURCES a.cpp ... [DEPS targets ...]): static library of one folder of src/.
function(longspan_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC longspan_flags ${ARG_DEPS})
  longspan_precompile(${name})
endfunction()

# longspan_test(NAME SOURCES a_test.cpp ... [DEPS targets ...] [LABELS fast|slow|...] [TIMEOUT s]):
# a GoogleTest program that ctest runs as one test. The label "threads" is for tests of code that several
# threads share: the target thread_tests builds them, for ThreadSanitizer.
add_custom_target(thread_tests)
function(longspan_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(LONGSPAN_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longspan_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  longspan_precompile(${name} TEST)
  add_test(NAME ${name} COMMAND ${name})
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
  if("slow" IN_LIST ARG_LABELS)  # ctest begins with such tests, so that none is left alone at the end
    set_tests_properties(${name} PROPERTIES COST 40)
  endif()
  # One OpenMP thread: waiting threads of several ranks would otherwise spin on each other's cores.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()

find_package(GTest REQUIRED)
