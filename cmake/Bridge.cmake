# tercet_bridge: the Rust crate of bridge/, as an imported static library. Every build tree shares
# bridge/target, and cargo asks the network only for what it has never fetched.
find_program(CARGO cargo REQUIRED)
set(bridge_dir ${PROJECT_SOURCE_DIR}/bridge)
set(bridge_library ${bridge_dir}/target/release/libtercet_bridge.a)
file(GLOB bridge_sources CONFIGURE_DEPENDS ${bridge_dir}/src/*.rs)

# Cargo leaves a library that is up to date untouched, which a build tool would take for a failure.
add_custom_command(
  OUTPUT ${bridge_library}
  COMMAND ${CARGO} build --release --locked --quiet --manifest-path ${bridge_dir}/Cargo.toml
          --target-dir ${bridge_dir}/target
  COMMAND ${CMAKE_COMMAND} -E touch ${bridge_library}
  DEPENDS ${bridge_sources} ${bridge_dir}/Cargo.toml ${bridge_dir}/Cargo.lock
  COMMENT "Building the Rust bridge"
  VERBATIM)
add_custom_target(tercet_bridge_build DEPENDS ${bridge_library})

add_library(tercet_bridge STATIC IMPORTED GLOBAL)
set_target_properties(tercet_bridge PROPERTIES IMPORTED_LOCATION ${bridge_library}
                                               INTERFACE_INCLUDE_DIRECTORIES ${bridge_dir})
target_link_libraries(tercet_bridge INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
target_link_options(tercet_bridge INTERFACE -Wl,--gc-sections)
add_dependencies(tercet_bridge tercet_bridge_build)
