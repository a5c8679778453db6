#include "apps/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <utility>

#include "apps/nearest.h"
#include "apps/numbers.h"

namespace tercet {
namespace {

/// Every spelling of every option, with its dashes.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// A dash and a letter, or two dashes and something: what cannot be a value ("-1" and "-" can).
bool looks_like_option(const std::string& argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  return argument[1] == '-' ? argument.size() > 2
                            : std::isalpha(static_cast<unsigned char>(argument[1])) != 0;
}

/// The argument with its option's name as the app declares it.
Result<std::string> declared_spelling(const std::string& argument, std::span<const std::string> names) {
  const auto known = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const size_t equals = std::min(argument.find('='), argument.size());
  const std::string value = argument.substr(equals);
  std::string name = argument.substr(0, equals);
  if (known(name)) return argument;

  if (name[1] != '-') {
    const bool has_value = name.size() > 2 && std::isalpha(static_cast<unsigned char>(name[2])) == 0;
    if (has_value && known(name.substr(0, 2))) return argument;  // -n64, -c=32k
    if (name.size() > 2) name.insert(0, "-");
  }
  std::replace(name.begin(), name.end(), '_', '-');
  if (known(name)) return name + value;

  const std::string suggestion = nearest(name, names);
  return fail("unknown option {}{}", argument.substr(0, equals),
              suggestion.empty() ? "" : fmt::format("; did you mean {}?", suggestion));
}

Result<std::vector<std::string>> declared_spellings(const CLI::App& app, Arguments arguments) {
  const std::vector<std::string> names = option_names(app);
  std::vector<std::string> spelled;
  bool options_may_follow = true;
  for (const std::string& argument : arguments) {
    options_may_follow = options_may_follow && argument != "--";
    if (options_may_follow && looks_like_option(argument)) {
      TERCET_TRY(spelled.emplace_back(), declared_spelling(argument, names));
    } else {
      spelled.push_back(argument);
    }
  }
  return spelled;
}

/// The words of `text`, after `indent` columns, in lines of at most `width`; the first line is begun already.
std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (const std::string& word : CLI::detail::split(std::string(text), ' ')) {
    if (column > indent && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) out += ' ';
    out += word;
    column += word.size() + 1;
  }
  return out;
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_positionals(const CLI::App* app) const override {
    // One that has a name too is among the options.
    const auto unnamed = [](const CLI::Option* option) { return !option->nonpositional(); };
    const std::vector<const CLI::Option*> arguments = app->get_options(unnamed);
    return arguments.empty() ? "" : make_group("Arguments", true, arguments);
  }

  // CLI11 puts two blank lines between groups; here each part ends with one.
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return CLI::Formatter::make_usage(app, std::move(name)) + "\n";
  }
  std::string make_group(std::string group, bool positional,
                         std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(std::move(group), positional, std::move(options)).substr(1) +
           (positional ? "\n" : "");
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string line = "  " + option->get_name(positional, true);
    for (size_t at = 0; (at = line.find(',', at)) != std::string::npos; at += 2) line.insert(at + 1, " ");
    if (!positional) line += make_option_opts(option);
    if (option->get_description().empty()) return line + "\n";
    if (line.size() + 2 > kColumn) line += "\n" + std::string(kColumn, ' ');
    line.resize(std::max(line.size(), kColumn), ' ');
    return line + wrapped(option->get_description(), kColumn, 100) + "\n";
  }

 private:
  static constexpr size_t kColumn = 26;  // where explanations begin
};

}  // namespace

CommandLine::CommandLine(std::string name, std::string_view description, std::string examples)
    : CLI::App(wrapped(description, 0, 100) + "\n", std::move(name)) {
  formatter(std::make_shared<HelpFormatter>());
  set_help_flag("-h,--help", "This text");
  for (size_t at = 0; (at = examples.find('\n', at)) != std::string::npos; at += 3)
    examples.insert(at + 1, "  ");
  footer("Examples:\n  " + examples);
}

CLI::Validator whole_number(int64_t low, int64_t high) {
  return {[low, high](std::string& text) -> std::string {
            const Result<int64_t> value = parse_whole(text);
            if (!value) return value.error().message;
            if (*value < low || *value > high) {
              return fmt::format("expected a whole number from {} to {}, found {}", low, high, text);
            }
            text = std::to_string(*value);
            return "";
          },
          ""};
}

CLI::Validator real_number(double low, double high, bool above_low) {
  return {[=](std::string& text) -> std::string {
            const Result<double> value = parse_real(text);
            if (!value) return value.error().message;
            if (*value < low || *value > high || (above_low && *value == low)) {
              return fmt::format("expected a number {} {} up to {}, found {}", above_low ? "above" : "from",
                                 low, high, text);
            }
            return "";
          },
          ""};
}

CLI::Validator one_of(std::vector<std::string> names) {
  return {[names = std::move(names)](std::string& text) -> std::string {
            if (std::find(names.begin(), names.end(), text) != names.end()) return "";
            const std::string suggestion = nearest(text, names);
            return fmt::format("expected one of {}; found '{}'{}", fmt::join(names, ", "), text,
                               suggestion.empty() ? "" : fmt::format("; did you mean {}?", suggestion));
          },
          ""};
}

Result<bool> fill_options(CLI::App& app, Arguments arguments) {
  TERCET_TRY(std::vector<std::string> spelled, declared_spellings(app, arguments));
  std::reverse(spelled.begin(), spelled.end());  // CLI11 takes them from the back
  app.allow_extras();
  for (CLI::Option* option : app.get_options()) {
    // Scripts override by appending: the last value wins.
    if (option->get_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  try {
    app.parse(std::move(spelled));
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ArgumentMismatch& error) {
    return fail("{}: expected a value",
                std::string_view(error.what()).substr(0, std::string_view(error.what()).find(':')));
  } catch (const CLI::Error& error) {
    return fail("{}", error.what());
  }
  for (const std::string& extra : app.remaining()) {
    if (extra != "--") return fail("unexpected argument '{}'", extra);
  }
  return true;
}

std::optional<int> parse_arguments(CLI::App& app, Arguments arguments) {
  const Result<bool> filled = fill_options(app, arguments);
  if (!filled) {
    print_error(fmt::format("{} ({} --help lists the options)", filled.error().message, app.get_name()));
    return 2;
  }
  if (*filled) return std::nullopt;
  fmt::print("{}", app.help());
  return 0;
}

}  // namespace tercet
