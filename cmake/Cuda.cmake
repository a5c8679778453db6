# The CUDA toolkit, and how a .cu becomes an object: by a plain call of nvcc, since CMake 3.25 knows neither
# NVIDIA's wheels (tools/setup.sh) nor the newest architectures.
#
# TERCET_CUDA=AUTO takes a toolkit that is there (nvcc on the PATH, /usr/local/cuda, or the wheels in .cuda) and
# builds without CUDA where there is none; ON stops there; OFF never looks.
set(TERCET_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE TERCET_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TERCET_CUDA_ARCHITECTURES 90a CACHE STRING "Compute capabilities to hold code for, as 80;86;89;90a;100;120")

set(TERCET_HAS_CUDA OFF)
if(NOT TERCET_CUDA STREQUAL "OFF")
  find_program(TERCET_NVCC nvcc PATHS ${PROJECT_SOURCE_DIR}/.cuda/nvidia/cu13/bin /usr/local/cuda/bin)
  if(TERCET_NVCC)
    set(TERCET_HAS_CUDA ON)
  elseif(TERCET_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TERCET_CUDA=ON, but there is no nvcc: install a CUDA toolkit, or run ./test once, "
                        "which fetches NVIDIA's compiler into .cuda")
  endif()
endif()

if(TERCET_HAS_CUDA)
  get_filename_component(real_nvcc ${TERCET_NVCC} REALPATH)
  get_filename_component(cuda_root ${real_nvcc} DIRECTORY)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  find_path(TERCET_CUDA_INCLUDE cuda_runtime_api.h PATHS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include
            REQUIRED NO_DEFAULT_PATH)
  find_library(TERCET_CUDART cudart_static PATHS ${cuda_root}/lib64 ${cuda_root}/lib
               ${cuda_root}/targets/x86_64-linux/lib REQUIRED NO_DEFAULT_PATH)
  add_library(tercet_cudart INTERFACE)
  target_include_directories(tercet_cudart SYSTEM INTERFACE ${TERCET_CUDA_INCLUDE})
  target_link_libraries(tercet_cudart INTERFACE ${TERCET_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
  message(STATUS "CUDA: ${TERCET_NVCC}, for ${TERCET_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA: none; the program will run on CPUs alone")
endif()

# tercet_cuda_objects(VARIABLE [ARCHITECTURES A…] FILES F…): compiles kernels, for all of TERCET_CUDA_ARCHITECTURES or
# for those given, whatever that holds; VARIABLE receives the objects.
function(tercet_cuda_objects variable)
  cmake_parse_arguments(ARG "" "" "ARCHITECTURES;FILES" ${ARGN})
  if(NOT ARG_ARCHITECTURES)
    set(ARG_ARCHITECTURES ${TERCET_CUDA_ARCHITECTURES})
  endif()
  set(flags -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -Werror all-warnings
            -Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fPIC -I${PROJECT_SOURCE_DIR}/src)
  foreach(architecture ${ARG_ARCHITECTURES})
    list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  foreach(file ${ARG_FILES})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${file}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${launcher} ${TERCET_NVCC} ${flags} -MD -MF ${object}.d -MT ${object} -c
              ${CMAKE_CURRENT_SOURCE_DIR}/${file} -o ${object}
      DEPENDS ${file}
      DEPFILE ${object}.d
      COMMENT "Compiling ${file}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
