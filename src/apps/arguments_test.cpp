#include "apps/arguments.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tercet {
namespace {

class FillOptions : public testing::Test {
 protected:
  FillOptions() {
    app.add_option("-m,--model,MODEL", model,
                   "A folder, or a file, or anything else that this very long explanation wraps at the "
                   "hundredth column")
        ->option_text("MODEL");
    app.add_option("-n,--max-tokens", count, "Tokens")
        ->transform(whole_number(-1, 1 << 20))
        ->option_text("N");
    app.add_option("--tp,--tensor-parallel-size", shards, "Shards")
        ->transform(whole_number(1, 8))
        ->option_text("N");
    app.add_option("--temperature", temperature)->check(real_number(0, 2))->option_text("X");
    app.add_option("--top-p", top_p)->check(real_number(0, 1, true))->option_text("X");
    app.add_option("--backend", backend)->check(one_of({"auto", "reference"}))->option_text("NAME");
    app.add_flag("-v,--verbose", verbose);
  }

  Result<bool> fill(const std::vector<std::string>& arguments) { return fill_options(app, arguments); }
  std::string error(const std::vector<std::string>& arguments) {
    const Result<bool> filled = fill(arguments);
    return filled ? "no error" : filled.error().message;
  }

  CommandLine app{"tercet nothing", "Does nothing.", "tercet nothing folder\ntercet nothing -v folder"};
  std::string model;
  std::string input;
  int count = 0;
  int shards = 1;
  double temperature = 1;
  double top_p = 1;
  std::string backend;
  bool verbose = false;
};

TEST_F(FillOptions, TakesCommonSpellings) {
  ASSERT_TRUE(fill({"-n", "32k", "--temperature=0.5", "-v", "folder"}));
  EXPECT_EQ(count, 32768);
  EXPECT_EQ(temperature, 0.5);
  EXPECT_TRUE(verbose);
  EXPECT_EQ(model, "folder");
}

TEST_F(FillOptions, TakesAttachedValues) {
  ASSERT_TRUE(fill({"-n64"}));
  EXPECT_EQ(count, 64);
}

TEST_F(FillOptions, TakesNegativeNumbersAsValues) {
  ASSERT_TRUE(fill({"-n", "-1", "folder"}));
  EXPECT_EQ(count, -1);
  EXPECT_EQ(model, "folder");
}

TEST_F(FillOptions, TakesOneDashBeforeALongName) {
  ASSERT_TRUE(fill({"-tp", "2"}));
  EXPECT_EQ(shards, 2);
}

TEST_F(FillOptions, TakesUnderscoresForDashes) {
  ASSERT_TRUE(fill({"--tensor_parallel_size=4", "--max_tokens", "7"}));
  EXPECT_EQ(shards, 4);
  EXPECT_EQ(count, 7);
}

TEST_F(FillOptions, AfterTwoDashesEverythingIsAValue) {
  ASSERT_TRUE(fill({"-v", "--", "--model"}));
  EXPECT_EQ(model, "--model");
}

TEST_F(FillOptions, HelpFillsNothing) {
  const Result<bool> filled = fill({"--help"});
  ASSERT_TRUE(filled);
  EXPECT_FALSE(*filled);
}

TEST_F(FillOptions, UnknownOptionsGetTheNearestName) {
  EXPECT_EQ(error({"--tempreature", "1"}), "unknown option --tempreature; did you mean --temperature?");
  EXPECT_EQ(error({"--max_token=1"}), "unknown option --max_token; did you mean --max-tokens?");
  EXPECT_EQ(error({"-ngl", "99"}), "unknown option -ngl");
  EXPECT_EQ(error({"-x"}), "unknown option -x");
  EXPECT_EQ(error({"--frobnicate"}), "unknown option --frobnicate");
}

TEST_F(FillOptions, ValuesAreChecked) {
  EXPECT_EQ(error({"-n", "many"}), "--max-tokens: 'many' is not a whole number (like 4096, 32k or 8GiB)");
  EXPECT_EQ(error({"-n", "2M"}), "--max-tokens: expected a whole number from -1 to 1048576, found 2M");
  EXPECT_EQ(error({"-n", "-2"}), "--max-tokens: expected a whole number from -1 to 1048576, found -2");
  EXPECT_EQ(error({"--temperature", "2.5"}), "--temperature: expected a number from 0 up to 2, found 2.5");
  EXPECT_EQ(error({"--temperature", "-0.1"}), "--temperature: expected a number from 0 up to 2, found -0.1");
  EXPECT_EQ(error({"--temperature", "hot"}), "--temperature: 'hot' is not a number (like 0.7)");
  EXPECT_EQ(error({"--top-p", "0"}), "--top-p: expected a number above 0 up to 1, found 0");
  EXPECT_EQ(error({"--backend", "refrence"}),
            "--backend: expected one of auto, reference; found 'refrence'; did you mean reference?");
  EXPECT_EQ(error({"--backend", "tpu"}), "--backend: expected one of auto, reference; found 'tpu'");
}

TEST_F(FillOptions, BoundsBelongToTheRange) {
  ASSERT_TRUE(fill({"-n", "1M", "--temperature", "2", "--top-p", "1"}));
  EXPECT_EQ(count, 1 << 20);
  EXPECT_EQ(temperature, 2);
}

TEST_F(FillOptions, RefusesWhatIsTooMuchOrMissing) {
  EXPECT_EQ(error({"folder", "another"}), "unexpected argument 'another'");
  EXPECT_EQ(error({"-n"}), "--max-tokens: expected a value");
}

TEST_F(FillOptions, TheLastValueWins) {
  ASSERT_TRUE(fill({"-n", "1", "--max-tokens=2", "folder", "-m", "other"}));
  EXPECT_EQ(count, 2);
  EXPECT_EQ(model, "other");
}

TEST_F(FillOptions, UsageErrorsAreOneLineAndCode2) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse_arguments(app, std::vector<std::string>{"--nope"}), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tercet: error: unknown option --nope (tercet nothing --help lists the options)\n");
}

TEST_F(FillOptions, HelpGoesToStandardOutput) {
  app.add_option("INPUT", input, "What to read")->option_text("INPUT");
  testing::internal::CaptureStdout();
  EXPECT_EQ(parse_arguments(app, std::vector<std::string>{"--help"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            R"(Does nothing.

Usage: tercet nothing [OPTIONS] [MODEL] [INPUT]

Arguments:
  INPUT                   What to read

Options:
  -h, --help              This text
  -m, --model MODEL       A folder, or a file, or anything else that this very long explanation
                          wraps at the hundredth column
  -n, --max-tokens N      Tokens
  --tp, --tensor-parallel-size N
                          Shards
  --temperature X
  --top-p X
  --backend NAME
  -v, --verbose

Examples:
  tercet nothing folder
  tercet nothing -v folder
)");
}

TEST_F(FillOptions, GoodArgumentsLetTheCommandGoOn) {
  EXPECT_EQ(parse_arguments(app, std::vector<std::string>{"-n", "1"}), std::nullopt);
}

}  // namespace
}  // namespace tercet
