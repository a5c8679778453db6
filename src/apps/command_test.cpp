#include "apps/command.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/version.h"

namespace tercet {
namespace {

Result<int> play(Arguments arguments, const Console&) { return static_cast<int>(arguments.size()) + 10; }
Result<int> play_back(Arguments arguments, const Console&) { return static_cast<int>(arguments.size()) + 20; }
Result<int> stumble(Arguments, const Console&) { return fail("fell\nover"); }
constexpr Command kCommands[] = {
    {"play", "Plays.", play}, {"play back", "Plays back.", play_back}, {"stumble", "Falls.", stumble}};

struct Outcome {
  int code;
  std::string out;
  std::string error;
};

Outcome run(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_command(kCommands, arguments, Console{});
  std::string out = testing::internal::GetCapturedStdout();
  return {code, std::move(out), testing::internal::GetCapturedStderr()};
}

TEST(RunCommand, PassesOnWhatFollowsTheName) {
  EXPECT_EQ(run({"play"}).code, 10);
  EXPECT_EQ(run({"play", "x", "y"}).code, 12);
  EXPECT_EQ(run({"play", "back", "x"}).code, 21);
}

TEST(RunCommand, AnErrorIsOneLineAndCode1) {
  const Outcome outcome = run({"stumble"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.error, "tercet: error: fell over\n");
}

TEST(RunCommand, UnknownCommandsGetTheNearestName) {
  EXPECT_EQ(run({"plya"}).code, 2);
  EXPECT_EQ(run({"plya"}).error,
            "tercet: error: unknown command 'plya'; did you mean play? (tercet --help lists the commands)\n");
  EXPECT_EQ(run({"quux"}).error,
            "tercet: error: unknown command 'quux' (tercet --help lists the commands)\n");
  EXPECT_EQ(run({"-m", "x"}).error,
            "tercet: error: expected a command before '-m' (tercet --help lists the commands)\n");
}

TEST(RunCommand, HelpListsTheCommands) {
  for (const char* spelling : {"--help", "-h", "help"}) {
    const Outcome outcome = run({spelling});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_NE(outcome.out.find("  play back       Plays back.\n"), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(run({}).code, 2);
  EXPECT_EQ(run({}).out, "");
  EXPECT_EQ(run({}).error, run({"--help"}).out);
}

TEST(RunCommand, HelpOfACommandAsksTheCommand) {
  EXPECT_EQ(run({"help", "play"}).code, 11);
  EXPECT_EQ(run({"help", "play", "back"}).code, 21);
}

TEST(Version, NamesProgramArithmeticAndCompiler) {
  EXPECT_EQ(run({"--version"}).out, version_text());
  EXPECT_TRUE(version_text().starts_with("tercet " TERCET_VERSION "\narithmetic 1\ncompiler "))
      << version_text();
}

}  // namespace
}  // namespace tercet
