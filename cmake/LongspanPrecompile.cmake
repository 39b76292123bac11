# Headers that most files include, parsed once: for libraries, and for tests with GoogleTest on top.
#
# nlohmann/json.hpp is not among them: GCC instantiates what a precompiled header left pending again in
# every file, and of that header this takes a second of a file that does not use it.
#
# For whole builds from nothing (make core, sanitizers, fuzzers). A build without it (release, debug) still
# shows which file forgot an include of its own. Targets with compiler flags of their own cannot share the
# headers; they say so by DISABLE_PRECOMPILE_HEADERS.
set(common_headers <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional>
    <set> <span> <sstream> <string> <string_view> <utility> <variant> <vector>)
file(WRITE ${PROJECT_BINARY_DIR}/precompiled.cpp "// The precompiled headers need a file of their own.\n")

add_library(longspan_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
target_link_libraries(longspan_headers PRIVATE longspan_flags)
target_precompile_headers(longspan_headers PRIVATE ${common_headers})

add_library(longspan_test_headers OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
target_link_libraries(longspan_test_headers PRIVATE longspan_flags GTest::gtest)
target_precompile_headers(longspan_test_headers PRIVATE ${common_headers} <gtest/gtest.h>)
