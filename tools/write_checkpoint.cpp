// Writes checkpoints for developers: random ones of the true shapes, and the bf16 twin of a quantised one.
//
//   tercet_write_checkpoint synthetic synthetic:hy3:4 OUT --shards 3
//   tercet_write_checkpoint bf16 models/hy3-tiny OUT --names transformers
#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "base/threads.h"
#include "model/hy_v3/bf16_checkpoint.h"
#include "model/hy_v3/synthetic_model.h"
#include "weights/checkpoint.h"
#include "weights/checkpoint_writer.h"

namespace tercet {
namespace {

using hy_v3::Spelling;

struct Options {
  std::string model, out;
  uint64_t seed = 0;
  Spelling names = Spelling::hugging_face;
  int shards = 1;
};

Result<Checkpoint> make_bf16(const Options& options) {
  TERCET_TRY(const Checkpoint original, open_checkpoint(options.model));
  return hy_v3::to_bf16(original, options.names, available_threads());
}

int run(int argc, char** argv) {
  CLI::App app("Writes synthetic checkpoints and bf16 twins of quantised ones.");
  app.require_subcommand(1);
  Options options;
  CLI::App* synthetic = app.add_subcommand("synthetic", "random weights in the MLX layout");
  CLI::App* bf16 = app.add_subcommand("bf16", "every matrix of a checkpoint dequantised and rounded to bf16");
  synthetic->add_option("MODEL", options.model, "synthetic:hy3[:LAYERS] or synthetic:hy-mt2-30b[:LAYERS]")
      ->required();
  synthetic->add_option("--seed", options.seed);
  bf16->add_option("MODEL", options.model, "a checkpoint's directory")->required();
  const std::map<std::string, Spelling> names{{"hugging-face", Spelling::hugging_face},
                                              {"transformers", Spelling::transformers},
                                              {"mlx", Spelling::mlx}};
  bf16->add_option("--names", options.names,
                   "hugging-face: experts apart; transformers: fused stacks; mlx: stacks")
      ->transform(CLI::CheckedTransformer(names));
  for (CLI::App* command : {synthetic, bf16}) {
    command->add_option("OUT", options.out, "directory to write to")->required();
    command->add_option("--shards", options.shards)->check(CLI::Range(1, 9999));
  }
  CLI11_PARSE(app, argc, argv);

  const Result<Checkpoint> checkpoint =
      *synthetic ? hy_v3::parse_synthetic(options.model, options.seed, available_threads())
                 : make_bf16(options);
  const Result<void> written = checkpoint ? write_checkpoint(options.out, *checkpoint, options.shards)
                                          : tl::unexpected(checkpoint.error());
  if (written) return 0;
  fmt::print(stderr, "{}\n", written.error().message);
  return 1;
}

}  // namespace
}  // namespace tercet

int main(int argc, char** argv) { return tercet::run(argc, argv); }
