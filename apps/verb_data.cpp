#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/expand_patterns.h"
#include "data/fasta_index.h"
#include "data/inspect_documents.h"
#include "data/leakage.h"
#include "data/open_documents.h"
#include "data/pack_documents.h"
#include "formats/json.h"
#include "observe/console.h"
#include "option_checks.h"
#include "verbs.h"

namespace longspan {
namespace {

struct DataArguments {
  std::vector<std::string> patterns;
  std::string tokenizer = "byte";
  std::string format = "auto";
  bool no_end_of_document = false;
  double soft_mask_weight = 1;
  int64_t max_n_run = 0;
  std::vector<std::string> hold_out;
  std::string out;
  bool overwrite = false;
  int64_t vocabulary = 0;
  int64_t micro_batch_tokens = 0;
  std::string json;
  bool leakage = false;
  std::vector<std::string> eval;
};

std::unique_ptr<DocumentSource> open(const DataArguments& arguments,
                                     const std::vector<std::string>& patterns, Split split) {
  OpenOptions options;
  if (arguments.tokenizer != "none") {
    options.tokenizer = make_tokenizer(arguments.tokenizer, !arguments.no_end_of_document);
  }
  options.format = parse_document_format(arguments.format);
  options.fasta.soft_mask_weight = static_cast<float>(arguments.soft_mask_weight);
  options.fasta.max_n_run = arguments.max_n_run;
  if (split != Split::kAll) options.hold_out = arguments.hold_out;
  options.hold_out_named_by = "--hold-out";
  options.fasta.split = split;
  return open_documents(patterns, options);
}

std::unique_ptr<DocumentSource> open(const DataArguments& arguments) {
  return open(arguments, arguments.patterns,
              arguments.hold_out.empty() ? Split::kAll : Split::kTrain);
}

int pack(const DataArguments& arguments) {
  const auto source = open(arguments);
  std::unique_ptr<Progress> progress;
  PackShardOptions options{.vocabulary_size = arguments.vocabulary > 0 ? arguments.vocabulary
                                                                       : source->vocabulary_bound(),
                           .overwrite = arguments.overwrite};
  options.progress = [&](int64_t done_tokens, int64_t total_tokens) {
    if (!progress) {
      progress =
          std::make_unique<Progress>(std::cerr, is_terminal(2), "pack", total_tokens, "tokens");
    }
    progress->update(done_tokens);
  };
  const PackedShard shard = pack_documents(*source, arguments.out, options);
  progress.reset();
  std::cout << arguments.out << ".bin, .idx, .names" << (shard.has_weights ? ", .weights" : "")
            << ": " << shard.documents << " documents, " << shard.tokens << " tokens\n";
  if (!shard.made_folder.empty()) std::cout << shard.made_folder.string() << ": a new folder\n";
  if (shard.documents_empty > 0)
    std::cout << shard.documents_empty << " empty documents left out\n";
  for (const std::string& note : source->notes()) std::cout << note << "\n";
  return 0;
}

// The documents that --leakage looks for: those of --eval, or the part that --hold-out leaves out.
std::unique_ptr<DocumentSource> open_evaluation(const DataArguments& arguments) {
  if (arguments.tokenizer != "nucleotide") {
    throw UserError(text("--leakage counts windows of bases, and --tokenizer is ",
                         arguments.tokenizer, ": give --tokenizer nucleotide"));
  }
  if (!arguments.eval.empty()) return open(arguments, arguments.eval, Split::kAll);
  if (!arguments.hold_out.empty()) return open(arguments, arguments.patterns, Split::kHeldOut);
  throw UserError("--leakage needs held-out documents: name them with --eval or --hold-out");
}

LeakageReport leakage(const DataArguments& arguments, const DocumentSource& train) {
  const auto evaluation = open_evaluation(arguments);
  std::unique_ptr<Progress> progress;
  LeakageOptions options;
  options.progress = [&](int64_t done_tokens, int64_t total_tokens) {
    if (!progress) {
      progress =
          std::make_unique<Progress>(std::cerr, is_terminal(2), "leakage", total_tokens, "tokens");
    }
    progress->update(done_tokens);
  };
  return measure_leakage(train, *evaluation, options);
}

int inspect(const DataArguments& arguments) {
  if (!arguments.leakage && !arguments.eval.empty())
    throw UserError("--eval has no effect without --leakage");
  const auto source = open(arguments);
  const DocumentReport report = inspect_documents(*source, arguments.micro_batch_tokens);
  std::cout << format_report(report);
  Json json = report_json(report);
  if (arguments.leakage) {
    const LeakageReport found = leakage(arguments, *source);
    std::cout << format_leakage(found);
    json["leakage"] = leakage_json(found);
  }
  if (!arguments.json.empty()) write_json_atomic(arguments.json, json);
  return 0;
}

int index(const DataArguments& arguments) {
  for (const std::filesystem::path& fasta : expand_patterns(arguments.patterns)) {
    const std::filesystem::path path = fasta_index_path(fasta);
    const std::vector<FastaIndexEntry> entries = index_fasta(fasta);
    const std::string content = fasta_index_text(entries);
    const bool is_there = std::filesystem::exists(path);
    const bool is_same = is_there && read_text(path) == content;
    if (is_there && !is_same && !arguments.overwrite) {
      throw UserError(text(path.string(), " is there already and says otherwise; give --overwrite ",
                           "to replace it"));
    }
    if (!is_same) write_text_atomic(path, content);
    std::cout << path.string() << ": " << entries.size() << " records"
              << (is_same ? ", as it was" : "") << "\n";
  }
  return 0;
}

void add_source_options(CLI::App& verb, DataArguments& arguments) {
  verb.add_option("documents", arguments.patterns, "Files, folders or globs (quote them)")
      ->required();
  verb.add_option("--tokenizer", arguments.tokenizer, "byte, nucleotide or none");
  verb.add_option("--format", arguments.format, "auto (by suffix), text, jsonl, fasta or megatron");
  verb.add_flag("--no-end-of-document", arguments.no_end_of_document,
                "Add no end-of-document token");
  verb.add_option("--soft-mask-weight", arguments.soft_mask_weight,
                  "FASTA: loss weight of lower-case bases");
  verb.add_option("--max-n-run", arguments.max_n_run,
                  "FASTA: a longer run of N ends the document; 0: none does")
      ->check(whole_number(0));
  verb.add_option("--hold-out", arguments.hold_out,
                  "FASTA: records left out (names, globs, a .bed file)");
}

}  // namespace

void add_data(CLI::App& app, VerbRunner& run) {
  CLI::App* verb =
      app.add_subcommand("data", "Pack documents into token shards, or report what is inside");
  verb->require_subcommand(1);

  auto pack_arguments = std::make_shared<DataArguments>();
  CLI::App* pack_verb =
      verb->add_subcommand("pack", "Text, jsonl or FASTA to a Megatron .bin/.idx shard");
  add_source_options(*pack_verb, *pack_arguments);
  pack_verb->add_option("--out", pack_arguments->out, "Path of the shard without suffix")
      ->required();
  pack_verb->add_flag("--overwrite", pack_arguments->overwrite, "Replace an existing shard");
  pack_verb
      ->add_option("--vocabulary", pack_arguments->vocabulary,
                   "Vocabulary size; default: the tokenizer's")
      ->check(whole_number(1));
  pack_verb->callback(
      [pack_arguments, &run] { run = [pack_arguments] { return pack(*pack_arguments); }; });

  auto inspect_arguments = std::make_shared<DataArguments>();
  CLI::App* inspect_verb =
      verb->add_subcommand("inspect", "How many documents, how long, how unequal");
  add_source_options(*inspect_verb, *inspect_arguments);
  inspect_verb
      ->add_option("--micro-batch-tokens", inspect_arguments->micro_batch_tokens,
                   "Also report how full micro-batches of this size are")
      ->check(whole_number(1));
  inspect_verb->add_option("--json", inspect_arguments->json, "Also write the report to this file");
  inspect_verb->add_flag("--leakage", inspect_arguments->leakage,
                         "Also report which share of the held-out 24-mers occurs in these "
                         "documents, on either strand");
  inspect_verb->add_option(
      "--eval", inspect_arguments->eval,
      "With --leakage: the held-out documents; default: what --hold-out names");
  inspect_verb->callback([inspect_arguments, &run] {
    run = [inspect_arguments] { return inspect(*inspect_arguments); };
  });

  auto index_arguments = std::make_shared<DataArguments>();
  CLI::App* index_verb = verb->add_subcommand("index", "Write the .fai of FASTA files beside them");
  index_verb->add_option("files", index_arguments->patterns, "FASTA files, plain or bgzip; globs")
      ->required();
  index_verb->add_flag("--overwrite", index_arguments->overwrite, "Replace an index that differs");
  index_verb->callback(
      [index_arguments, &run] { run = [index_arguments] { return index(*index_arguments); }; });
}

}  // namespace longspan
