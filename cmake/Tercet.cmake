# How a folder becomes a target. The link line of each folder is the layer rule of
# docs/architecture.md: a target sees the headers of what it links, and of nothing else.

# tercet_library(NAME SOURCES… DEPENDS…): the static library tercet_NAME.
function(tercet_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(tercet_${name} STATIC ${ARG_SOURCES})
  target_include_directories(tercet_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(tercet_${name} PUBLIC tercet_flags ${ARG_DEPENDS})
endfunction()

# tercet_test(NAME SOURCES… DEPENDS…): the GoogleTest program NAME_test in build/…/tests.
# ./test runs every program that lies there.
function(tercet_test name)
  if(NOT TERCET_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE tercet_flags ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE TERCET_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# tercet_fuzzer(NAME SOURCES… DEPENDS…): the libFuzzer program NAME_fuzz; needs Clang.
function(tercet_fuzzer name)
  if(NOT TERCET_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name}_fuzz ${ARG_SOURCES})
  target_link_libraries(${name}_fuzz PRIVATE tercet_flags ${ARG_DEPENDS})
  target_compile_definitions(${name}_fuzz PRIVATE TERCET_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endfunction()
