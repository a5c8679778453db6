#include "apps/verify.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/arguments.h"
#include "text/verify.h"

namespace tercet {

Result<int> run_verify_text(Arguments given, const Console&) {
  std::string model;
  std::vector<std::string> names;
  CommandLine app(
      "tercet verify text",
      "Checks a checkpoint's tokenizer and chat template against files of cases, one JSON object a line: "
      "answers to take apart (pieces), requests to render (prompt) or to refuse (error), texts to "
      "tokenise (ids). Prints a line for each that fails, and the counts.",
      "tercet verify text models/hy3-tiny tests/cases/answers.jsonl tests/cases/prompts.jsonl");
  app.add_option("MODEL", model, "The checkpoint's folder")->required();
  app.add_option("FILE", names, "Files of cases")->required();
  if (const auto code = parse_arguments(app, given)) return *code;
  const std::vector<std::filesystem::path> files(names.begin(), names.end());
  TERCET_TRY(const CaseReport report, verify_text(model, files));
  for (const std::string& failure : report.failures) fmt::print("{}\n", failure);
  fmt::print("{} passed, {} failed\n", report.passed, report.failed);
  return report.failed == 0 ? 0 : 1;
}

}  // namespace tercet
