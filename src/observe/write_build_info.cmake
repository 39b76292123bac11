# Writes build_info.cpp with the commit of SOURCE_DIR, if that changed. Run by every build.
find_program(GIT git)
set(commit "")
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(commit)
    execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} diff --quiet HEAD RESULT_VARIABLE differs
                    ERROR_QUIET)
    if(NOT differs EQUAL 0)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
set(content "#include \"observe/build_info.h\"\n\nnamespace longspan {\n
std::string_view build_commit() { return \"${commit}\"; }\n\n}  // namespace longspan\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL content)
  file(WRITE ${OUTPUT} "${content}")
endif()
