#include "data/inspect_documents.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "data/packer.h"

namespace longspan {
namespace {

constexpr int kPercentiles[] = {0, 1, 10, 25, 50, 75, 90, 99, 100};

double causal_pairs(int64_t length) {
  const auto s = static_cast<double>(length);
  return s * (s + 1) / 2;
}

// Lengths of documents that are not empty, ascending.
std::vector<int64_t> sorted_lengths(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sorted;
  std::copy_if(lengths.begin(), lengths.end(), std::back_inserter(sorted),
               [](int64_t length) { return length > 0; });
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

void describe_lengths(const std::vector<int64_t>& sorted, DocumentReport& report) {
  for (const int percent : kPercentiles) {
    const auto rank = static_cast<size_t>(
        std::ceil(static_cast<double>(percent) / 100 * static_cast<double>(sorted.size())));
    report.length_percentiles.emplace_back(percent, sorted[rank == 0 ? 0 : rank - 1]);
  }
  double work = 0;
  for (const int64_t length : sorted) {
    report.tokens += length;
    report.sum_of_squares += static_cast<double>(length) * static_cast<double>(length);
    work += causal_pairs(length);
  }
  const size_t longest_count = (sorted.size() + 99) / 100;
  double longest_tokens = 0;
  double longest_work = 0;
  for (size_t idx = sorted.size() - longest_count; idx < sorted.size(); ++idx) {
    longest_tokens += static_cast<double>(sorted[idx]);
    longest_work += causal_pairs(sorted[idx]);
  }
  const auto tokens = static_cast<double>(report.tokens);
  report.mean_document_tokens = tokens / static_cast<double>(sorted.size());
  report.token_weighted_tokens = report.sum_of_squares / tokens;
  report.longest_percent_tokens = 100 * longest_tokens / tokens;
  report.longest_percent_work = 100 * longest_work / work;
  report.longest_document_work = 100 * causal_pairs(sorted.back()) / work;
}

void describe_packing(const std::vector<int64_t>& lengths, int64_t micro_batch_tokens,
                      DocumentReport& report) {
  report.micro_batch_tokens = micro_batch_tokens;
  if (std::none_of(lengths.begin(), lengths.end(),
                   [&](int64_t length) { return length > 0 && length <= micro_batch_tokens; })) {
    report.documents_overlong = report.documents;
    report.tokens_overlong = report.tokens;
    return;
  }
  const EpochPlan plan = plan_epoch(
      lengths, {.micro_batch_tokens = micro_batch_tokens, .overlong = Overlong::kSkip}, 0);
  report.micro_batches = plan.micro_batches();
  report.fill_percent = plan.report().fill_percent();
  report.documents_overlong = plan.report().documents_skipped;
  report.tokens_overlong = plan.report().tokens_skipped;
}

// 1234567 -> "1,234,567": lengths are read by people.
std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string grouped_digits;
  for (size_t idx = 0; idx < digits.size(); ++idx) {
    if (idx > 0 && (digits.size() - idx) % 3 == 0) grouped_digits += ',';
    grouped_digits += digits[idx];
  }
  return grouped_digits;
}

}  // namespace

DocumentReport inspect_documents(const DocumentSource& source, int64_t micro_batch_tokens) {
  const std::vector<int64_t> lengths = document_lengths(source);
  const std::vector<int64_t> sorted = sorted_lengths(lengths);
  DocumentReport report;
  report.notes = source.notes();
  report.documents = static_cast<int64_t>(sorted.size());
  report.documents_empty = static_cast<int64_t>(lengths.size() - sorted.size());
  if (sorted.empty()) return report;
  describe_lengths(sorted, report);
  const auto longest = std::max_element(lengths.begin(), lengths.end());
  report.longest_tokens = *longest;
  report.longest_name = source.name(longest - lengths.begin());
  if (micro_batch_tokens > 0) describe_packing(lengths, micro_batch_tokens, report);
  return report;
}

std::string format_report(const DocumentReport& report) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  out << "documents          " << grouped(report.documents);
  if (report.documents_empty > 0) out << " and " << grouped(report.documents_empty) << " empty";
  out << "\ntokens             " << grouped(report.tokens) << "\nlength percentiles";
  for (const auto& [percent, length] : report.length_percentiles) {
    out << "  p" << percent << ' ' << grouped(length);
  }
  out << "\nlongest            " << grouped(report.longest_tokens) << "  " << report.longest_name
      << "\nmean length        " << report.mean_document_tokens << ", as a token sees it "
      << report.token_weighted_tokens << " (sum s^2 / sum s)\nsum of squares     "
      << std::scientific << std::setprecision(3) << report.sum_of_squares << std::fixed
      << std::setprecision(1) << "\nlongest 1 %        " << report.longest_percent_tokens
      << " % of tokens, " << report.longest_percent_work
      << " % of attention work; the longest one alone " << report.longest_document_work << " %\n";
  if (report.micro_batch_tokens > 0) {
    out << "packing            " << grouped(report.micro_batches) << " micro-batches of "
        << grouped(report.micro_batch_tokens) << " tokens, fill " << report.fill_percent << " %";
    if (report.documents_overlong > 0) {
      const double percent =
          100.0 * static_cast<double>(report.tokens_overlong) / static_cast<double>(report.tokens);
      out << "; " << grouped(report.documents_overlong) << " documents of "
          << grouped(report.tokens_overlong) << " tokens (" << percent
          << " % of all) are longer than that";
    }
    out << '\n';
  }
  for (const std::string& note : report.notes) out << "note               " << note << '\n';
  return out.str();
}

Json report_json(const DocumentReport& report) {
  Json percentiles = Json::object();
  for (const auto& [percent, length] : report.length_percentiles) {
    percentiles[text("p", percent)] = length;
  }
  return {{"documents", report.documents},
          {"documents_empty", report.documents_empty},
          {"tokens", report.tokens},
          {"length_percentiles", percentiles},
          {"longest_tokens", report.longest_tokens},
          {"longest_name", report.longest_name},
          {"sum_of_squares", report.sum_of_squares},
          {"mean_document_tokens", report.mean_document_tokens},
          {"token_weighted_tokens", report.token_weighted_tokens},
          {"longest_percent_tokens", report.longest_percent_tokens},
          {"longest_percent_work", report.longest_percent_work},
          {"longest_document_work", report.longest_document_work},
          {"micro_batch_tokens", report.micro_batch_tokens},
          {"micro_batches", report.micro_batches},
          {"fill_percent", report.fill_percent},
          {"documents_overlong", report.documents_overlong},
          {"tokens_overlong", report.tokens_overlong},
          {"notes", report.notes}};
}

}  // namespace longspan
