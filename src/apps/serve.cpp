#include "apps/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "apps/arguments.h"
#include "apps/interrupt.h"
#include "apps/loaded_model.h"
#include "apps/text_model.h"
#include "base/sha256.h"
#include "engine/scoring.h"
#include "ops/arithmetic_version.h"
#include "serve/http_server.h"
#include "serve/router.h"
#include "text/read_file.h"

namespace tercet {
namespace {

using Milliseconds = std::chrono::milliseconds;

struct ServeArguments {
  ModelOptions model;
  HttpOptions http;
  GuardOptions guard;
  DriverOptions driver{.max_sequences = 64, .max_waiting = 256};
  ServiceOptions service;
  std::vector<std::string> names;
  std::string key_file, reasoning = "reasoning_content";
  int64_t cache_tokens = 0;
  double deadline = 0, drain = 30;
  bool allow_public = false, no_prefix_cache = false, no_log = false, log_prompts = false;
};

Milliseconds milliseconds(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1000)); }

void add_network_options(CLI::App& app, ServeArguments& arguments) {
  HttpOptions& http = arguments.http;
  app.option_defaults()->group("Network");
  app.add_option("--host", http.address, "The interface's number (default: 127.0.0.1, this machine alone)")
      ->option_text("ADDRESS");
  app.add_option("-p,--port", http.port, "TCP port (default: 8000); 0: one that is free")
      ->transform(whole_number(0, 65535))
      ->option_text("N");
  app.add_option("--api-key", arguments.guard.keys,
                 "A key that callers must give; may be repeated. Also read from TERCET_API_KEY")
      ->option_text("KEY")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", arguments.key_file, "A file with one key a line")->option_text("FILE");
  app.add_flag("--allow-public", arguments.allow_public,
               "Listen on other machines' calls without a key: whoever can reach the port can use it");
  app.add_option("--tls-cert,--ssl-certfile,--ssl-cert-file", http.certificate,
                 "Certificate chain, PEM: speak TLS")
      ->option_text("FILE");
  app.add_option("--tls-key,--ssl-keyfile,--ssl-key-file", http.key, "The certificate's private key, PEM")
      ->option_text("FILE");
  app.add_option("--cors,--allowed-origins", arguments.guard.origins,
                 "A site whose pages may ask, like https://example.org, or *; may be repeated")
      ->option_text("ORIGIN")
      ->allow_extra_args(false);
  app.add_option("--max-body", http.max_body_bytes, "Bytes of a request at most (default: 8M)")
      ->transform(whole_number(1, int64_t{1} << 32))
      ->option_text("N");
  app.add_option("--max-connections", http.max_connections, "Open connections at most (default: 1024)")
      ->transform(whole_number(1, 1 << 20))
      ->option_text("N");
  app.add_option("--http-threads", http.threads, "Threads that read, render and write (default: 2)")
      ->transform(whole_number(1, 256))
      ->option_text("N");
}

void add_serving_options(CLI::App& app, ServeArguments& arguments) {
  app.option_defaults()->group("Serving");
  app.add_option("-a,--alias,--served-model-name", arguments.names,
                 "The model's name (default: its folder's); may be repeated; *: any name will do")
      ->option_text("NAME")
      ->allow_extra_args(false);
  app.add_option("--np,--parallel,--max-num-seqs", arguments.driver.max_sequences,
                 "Answers that are made at once (default: 64)")
      ->transform(whole_number(1, 4096))
      ->option_text("N");
  app.add_option("--max-waiting", arguments.driver.max_waiting,
                 "Requests that may wait; more are refused with 429 (default: 256)")
      ->transform(whole_number(0, 1 << 20))
      ->option_text("N");
  app.add_option(
         "--kv-cache-tokens", arguments.cache_tokens,
         "Tokens in the cache of all requests together, reserved at the start (default: two contexts)")
      ->transform(whole_number(1, int64_t{1} << 31))
      ->option_text("N");
  app.add_flag("--no-prefix-cache,--no-enable-prefix-caching", arguments.no_prefix_cache,
               "Compute every prompt anew");
  app.add_option("--deadline", arguments.deadline, "Seconds that a request may take; 0: any (default)")
      ->check(real_number(0, 1e6))
      ->option_text("X");
  app.add_option("--drain", arguments.drain,
                 "Seconds that requests have to end after SIGTERM; a second one ends at once (default: 30)")
      ->check(real_number(0, 1e6))
      ->option_text("X");
  app.add_flag("--strict", arguments.service.strict, "Refuse fields that would be ignored with a warning");
  app.add_option("--reasoning-field", arguments.reasoning,
                 "Where thoughts are told: reasoning_content (default), reasoning, or both")
      ->check(one_of({"reasoning_content", "reasoning", "both"}))
      ->option_text("NAME");
  app.add_flag("--no-access-log", arguments.no_log, "No JSON line on standard output for each response");
  app.add_flag("--log-prompts", arguments.log_prompts, "Requests' bodies in these lines");
  app.option_defaults()->group("Options");
}

Result<void> read_keys(ServeArguments& arguments) {
  std::vector<std::string>& keys = arguments.guard.keys;
  if (const char* key = std::getenv("TERCET_API_KEY"); key != nullptr && *key != '\0') keys.emplace_back(key);
  if (!arguments.key_file.empty()) {
    TERCET_TRY(const std::string text, read_file(arguments.key_file));
    const size_t before = keys.size();
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
      if (end > at) keys.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    if (keys.size() == before) return fail("{}: no key in it", arguments.key_file);
  }
  if (std::find(keys.begin(), keys.end(), "") != keys.end())
    return fail("--api-key: a key must not be empty");
  return {};
}

/// What browsers send as one ("null" stands for pages that are files).
bool is_origin(std::string_view text) {
  const size_t host = text.find("://");
  if (text == "*" || text == "null") return true;
  return host != text.npos && host > 0 && host + 3 < text.size() && text.find('/', host + 3) == text.npos;
}

Result<void> check_arguments(ServeArguments& arguments) {
  TERCET_TRY_VOID(read_keys(arguments));
  for (const std::string& origin : arguments.guard.origins) {
    if (is_origin(origin)) continue;
    return fail("--cors: expected a site like https://example.org, without a path, or *; found {}", origin);
  }
  for (const std::string& name : arguments.names) {
    if (name.empty()) return fail("--alias: a name must not be empty");
  }
  HttpOptions& http = arguments.http;
  if (http.address == "localhost") http.address = "127.0.0.1";
  if (http.certificate.empty() != http.key.empty()) return fail("--tls-cert and --tls-key belong together");
  if (!is_loopback(http.address) && arguments.guard.keys.empty() && !arguments.allow_public) {
    return fail(
        "--host {}: other machines could call without a key; give --api-key, or insist with --allow-public",
        http.address);
  }
  arguments.guard.local = is_loopback(http.address);
  arguments.service.reasoning_content = arguments.reasoning != "reasoning";
  arguments.service.reasoning = arguments.reasoning != "reasoning_content";
  arguments.driver.deadline = milliseconds(arguments.deadline);
  if (arguments.names.empty()) {
    std::filesystem::path path = std::filesystem::path(arguments.model.model).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    arguments.names.push_back(path.filename().string());
  }
  return {};
}

/// Everything that answers stand on, in the order in which it is built.
struct Backend {
  LoadedModel model;
  std::unique_ptr<TextModel> text;
  std::unique_ptr<AnswerGrammars> grammars;
  std::unique_ptr<EngineDriver> driver;
  std::unique_ptr<ServedModel> served;
  std::unique_ptr<Service> service;
};

/// Of the config, of all weights, and of what the model makes of a fixed sequence: equal for equal
/// checkpoints under equal arithmetic, on any machine, and for no others. Warms up all that a step needs.
Result<std::string> fingerprint(const LoadedModel& model, const std::string& config_json) {
  constexpr int32_t kTokens = 64;
  Executor& executor = *model.executor;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kTokens; ++i) {
    tokens.push_back(static_cast<int32_t>(i * executor.vocabulary() / kTokens));
  }
  TERCET_TRY(const std::string scored,
             score_digest(executor, tokens, std::min(kTokens, executor.max_rows())));
  Sha256 all;
  for (const std::string& part : {config_json, model.digest, scored}) all.add(std::as_bytes(std::span(part)));
  return fmt::format("fp_{}_a{}", all.hex().substr(0, 16), kArithmeticVersion);
}

/// What can be known to be wrong with the model before anyone is told to wait for it.
Result<OpenedModel> open(const ServeArguments& arguments) {
  TERCET_TRY(OpenedModel opened, open_model(arguments.model));
  if (arguments.model.context > opened.config.max_positions) {
    return fail("--ctx-size {}: {} was made for {} tokens", arguments.model.context, arguments.model.model,
                opened.config.max_positions);
  }
  return opened;
}

Result<void> load(const ServeArguments& arguments, const OpenedModel& opened, const Console& console,
                  Backend& backend) {
  constexpr int64_t kDefaultContext = 32768;
  const hy_v3::Config& config = opened.config;
  TERCET_TRY(TextModel text, load_text_model(arguments.model, config));
  backend.text = std::make_unique<TextModel>(std::move(text));
  const int64_t context =
      arguments.model.context > 0 ? arguments.model.context : std::min(config.max_positions, kDefaultContext);
  const int64_t cache = arguments.cache_tokens > 0 ? arguments.cache_tokens : 2 * context;
  TERCET_TRY(backend.model, load_model(arguments.model, {.cache_tokens = cache, .digest = true}, console));
  LocalExecutor& executor = *backend.model.executor;
  TERCET_TRY(std::string print, fingerprint(backend.model, opened.checkpoint.config_json));

  TERCET_TRY(AnswerGrammars grammars,
             AnswerGrammars::create(backend.text->tokenizer, backend.text->tags,
                                    backend.text->generation.eos_tokens, executor.vocabulary()));
  backend.grammars = std::make_unique<AnswerGrammars>(std::move(grammars));

  EngineOptions options;
  options.max_positions = static_cast<int32_t>(context);
  options.max_sequences = std::min(arguments.driver.max_sequences, executor.max_rows());
  options.prefix_cache = !arguments.no_prefix_cache;
  options.eos_tokens = backend.text->generation.eos_tokens;
  options.seed = std::random_device{}();
  TERCET_TRY(auto engine, Engine::create(options, executor));
  DriverOptions driver = arguments.driver;
  driver.max_sequences = options.max_sequences;
  backend.driver = std::make_unique<EngineDriver>(std::move(engine), driver);
  backend.served =
      std::make_unique<ServedModel>(ServedModel{.names = arguments.names,
                                                .path = arguments.model.model,
                                                .fingerprint = std::move(print),
                                                .tokenizer = backend.text->tokenizer,
                                                .tags = backend.text->tags,
                                                .chat_template = backend.text->chat_template,
                                                .grammars = *backend.grammars,
                                                .defaults = backend.text->generation.defaults,
                                                .vocabulary = executor.vocabulary(),
                                                .trained_context = static_cast<int32_t>(config.max_positions),
                                                .created = std::time(nullptr)});
  backend.service = std::make_unique<Service>(Service{*backend.served, *backend.driver, arguments.service});
  return {};
}

void say(const std::string& text) { tell(fmt::format("tercet: {}\n", text)); }

/// Until a signal asks for the end; then until the answers in progress have ended.
void serve_until_asked(HttpServer& server, EngineDriver& driver, double drain) {
  const Interrupts interrupts({SIGINT, SIGTERM});
  while (!interrupts.requested()) std::this_thread::sleep_for(Milliseconds(20));
  say("ending when the answers in progress have ended; a second signal ends at once");
  server.drain();
  driver.drain(milliseconds(drain));
  const auto patience = Clock::now() + Milliseconds(3000);  // for the last bytes to be read
  while (server.connections() > 0 && Clock::now() < patience) std::this_thread::sleep_for(Milliseconds(5));
}

}  // namespace

Result<int> run_serve(Arguments given, const Console& console) {
  ServeArguments arguments;
  CommandLine app(
      "tercet serve",
      "Answers OpenAI's HTTP API (/v1/chat/completions, /v1/completions, /v1/models, …), with a chat page "
      "at /. Many requests are answered at once, and what each gets does not depend on the others.",
      "tercet serve models/hy3-tiny\n"
      "tercet serve models/hy3-tiny --host 0.0.0.0 --api-key-file keys.txt --tls-cert c.pem --tls-key k.pem\n"
      "curl localhost:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hi\"}]}'");
  add_model_options(app, arguments.model);
  add_network_options(app, arguments);
  add_serving_options(app, arguments);
  if (const auto code = parse_arguments(app, given)) return *code;
  TERCET_TRY_VOID(check_arguments(arguments));
  TERCET_TRY(std::optional<OpenedModel> opened, open(arguments));

  // Who reads the log may end before the server does.
  std::signal(SIGPIPE, SIG_IGN);

  // The server goes first: what it answers from lives longer.
  Backend backend;
  std::atomic<const HttpServer*> listening{nullptr};
  std::mutex log_mutex;
  RouterOptions options;
  options.guard = arguments.guard;
  options.log_bodies = arguments.log_prompts;
  options.connections = [&] {
    const HttpServer* open = listening;
    return open == nullptr ? 0 : open->connections();
  };
  if (!arguments.no_log) {
    options.log_line = [&](const std::string& line) {
      const std::lock_guard lock(log_mutex);
      // Answers go on where nobody takes the log, or there is no room for it.
      std::fwrite(line.data(), 1, line.size(), stdout);
      std::fputc('\n', stdout);
      std::fflush(stdout);
    };
  }
  Router router(std::move(options));
  TERCET_TRY(const std::unique_ptr<HttpServer> server, HttpServer::start(arguments.http, router));
  listening = server.get();
  const std::string& address = arguments.http.address;
  const bool v6 = address.find(':') != std::string::npos;
  say(fmt::format("listening on {}://{}:{}", arguments.http.certificate.empty() ? "http" : "https",
                  v6 ? "[" + address + "]" : address, server->port()));
  TERCET_TRY_VOID(load(arguments, *opened, console, backend));
  opened.reset();
  router.serve(*backend.service);
  say(fmt::format("{} is ready: {} tokens of context, {} answers at once ({})", arguments.names.front(),
                  backend.driver->context(), backend.driver->options().max_sequences,
                  backend.served->fingerprint));
  serve_until_asked(*server, *backend.driver, arguments.drain);
  return 0;
}

}  // namespace tercet
