"""The checks of the source text find what they are for."""

import checks


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_an_include_that_goes_up_is_named_with_its_line(tmp_path):
    write(tmp_path, "src/engine/engine.h", "")
    write(tmp_path, "src/ops/ops.h", '#pragma once\n\n#include "engine/engine.h"\n')
    assert checks.check_includes(tmp_path) == ["src/ops/ops.h:3: ops may not include engine/engine.h"]


def test_includes_that_go_down_pass_also_across_layers(tmp_path):
    write(tmp_path, "src/base/error.h", "")
    write(tmp_path, "src/model/hy_v3/config.h", '#include "base/error.h"\n#include <vector>\n')
    write(tmp_path, "src/engine/engine.cpp", '#include "engine/gone.h"\n#include "model/hy_v3/config.h"\n')
    assert checks.check_includes(tmp_path) == []


def test_the_reference_stands_on_no_other_backend_even_by_a_relative_path(tmp_path):
    write(tmp_path, "src/backend/cpu/product.h", "")
    write(tmp_path, "src/backend/reference/product.cpp", '#include "../cpu/product.h"\n')
    assert checks.check_includes(tmp_path) == [
        "src/backend/reference/product.cpp:1: backend/reference may not include backend/cpu/product.h"]


def test_the_server_sees_the_engine_through_its_seam_only(tmp_path):
    write(tmp_path, "src/engine/engine.h", "")
    write(tmp_path, "src/engine/scheduler.h", "")
    write(tmp_path, "src/serve/http.cpp", '#include "engine/engine.h"\n#include "engine/scheduler.h"\n')
    assert checks.check_includes(tmp_path) == ["src/serve/http.cpp:2: serve may not include engine/scheduler.h"]


def test_a_unit_test_may_use_real_parts_up_to_its_layer(tmp_path):
    write(tmp_path, "src/backend/reference/reference.h", "")
    write(tmp_path, "src/apps/options.h", "")
    write(tmp_path, "src/engine/engine_test.cpp", '#include "backend/reference/reference.h"\n#include "apps/options.h"\n')
    assert checks.check_includes(tmp_path) == ["src/engine/engine_test.cpp:2: engine may not include apps/options.h"]


def test_a_folder_without_a_place_in_the_table_is_refused(tmp_path):
    write(tmp_path, "src/utils/misc.h", "")
    assert checks.check_includes(tmp_path) == ["src/utils/misc.h:1: its folder is not a layer of tests/checks.py"]


def test_a_file_may_have_800_lines(tmp_path):
    write(tmp_path, "src/base/right.cpp", "\n" * 800)
    write(tmp_path, "src/base/long.cpp", "\n" * 801)
    assert checks.check_lengths(tmp_path) == ["src/base/long.cpp:800: 801 lines, at most 800 are allowed"]


def test_format_names_the_line(tmp_path):
    write(tmp_path, ".clang-format", "BasedOnStyle: Google\n")
    write(tmp_path, "src/base/a.cpp", "int a;\nint   b;\n")
    assert checks.check_format(tmp_path) == ["src/base/a.cpp:2: not as clang-format writes it (places: 1)"]
