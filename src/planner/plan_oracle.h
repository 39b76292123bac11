// The plain reference of the plan verifier, for tests: plays a plan token by token.
//
// Every row is a number of its own: the count of visible pairs that have gone into its result.
// Slow (all pairs of all documents) and free of interval arithmetic.
//
//   EXPECT_EQ(find_violation_by_token(layout, plan), "");   // else a word on what is wrong
//
// It judges what a plan means: coverage, inputs, results, partial marks. Form (sorted transfers,
// buffer rows, groups that tile the tasks, ranks in range) must be right already.
#pragma once

#include <string>
#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

class PlanOracle {
 public:
  PlanOracle(const TokenLayout& layout, const AttentionPlan& plan)
      : layout_(layout), plan_(plan), chunk_(layout.chunk(plan.chunk)) {}

  std::string find_violation() {
    for (const auto& check : {&PlanOracle::coverage, &PlanOracle::inputs, &PlanOracle::results}) {
      if (const std::string violation = (this->*check)(); !violation.empty()) return violation;
    }
    return "";
  }

 private:
  // [kind][rank][line position]
  template <typename Value>
  using Table = std::vector<std::vector<std::vector<Value>>>;

  template <typename Value>
  Table<Value> make_table() const {
    const std::vector<Value> row(static_cast<size_t>(layout_.num_tokens()));
    return Table<Value>(2, std::vector<std::vector<Value>>(plan_.servers.size(), row));
  }

  template <typename Value>
  static auto& at(Table<Value>& table, RowKind kind, int rank, int64_t line) {
    return table[static_cast<size_t>(kind)][static_cast<size_t>(rank)][static_cast<size_t>(line)];
  }

  std::string coverage() {
    for (int32_t document = 0; document < layout_.num_documents(); ++document) {
      const int64_t tokens = layout_.document_tokens(document);
      std::vector<std::vector<int>> times(static_cast<size_t>(tokens),
                                          std::vector<int>(static_cast<size_t>(tokens), 0));
      for (const ServerPlan& server : plan_.servers) {
        for (const AttentionTask& task : server.tasks) {
          if (task.document != document) continue;
          if (!add_pairs(task, tokens, &times)) return "a task has no visible pair";
        }
      }
      for (int64_t query = 0; query < tokens; ++query) {
        const bool mine = chunk_.contains(layout_.document(document).begin + query);
        for (int64_t key = 0; key <= query; ++key) {
          const int expected = mine ? 1 : 0;
          if (times[static_cast<size_t>(query)][static_cast<size_t>(key)] != expected) {
            return "a pair is not covered once";
          }
        }
      }
    }
    return "";
  }

  static bool add_pairs(const AttentionTask& task, int64_t tokens,
                        std::vector<std::vector<int>>* times) {
    int64_t pairs = 0;
    for (int64_t query = task.queries.begin; query < task.queries.end; ++query) {
      for (int64_t key = task.keys.begin; key < task.keys.end && key <= query; ++key) {
        if (query < 0 || key < 0 || query >= tokens || key >= tokens) return false;
        (*times)[static_cast<size_t>(query)][static_cast<size_t>(key)] += 1;
        pairs += 1;
      }
    }
    return pairs > 0;
  }

  std::string inputs() {
    Table<char> held = make_table<char>();
    for (int64_t line = 0; line < chunk_.end; ++line) {
      at(held, RowKind::kKeyValue, layout_.home(line).rank, line) = 1;
      if (line >= chunk_.begin) at(held, RowKind::kQuery, layout_.home(line).rank, line) = 1;
    }
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      for (const Range& rows : plan_.servers[static_cast<size_t>(rank)].resident_key_rows) {
        for (int64_t line = rows.begin; line < rows.end; ++line) {
          at(held, RowKind::kKeyValue, rank, line) = 1;
        }
      }
    }
    for (size_t round = 0; round <= plan_.out.size(); ++round) {
      if (!groups_have_inputs(static_cast<int>(round), held)) return "a task lacks inputs";
      if (round == plan_.out.size()) break;
      Table<char> before = held;
      for (const Transfer& transfer : plan_.out[round].transfers) {
        if (!stays_in_home_piece(transfer)) return "a transfer leaves its home piece";
        for (int64_t line = transfer.line.begin; line < transfer.line.end; ++line) {
          if (!at(before, transfer.kind, transfer.source, line)) return "sent without holding";
          char& here = at(held, transfer.kind, transfer.destination, line);
          if (here) return "received twice";
          here = 1;
        }
      }
    }
    return "";
  }

  bool groups_have_inputs(int round, Table<char>& held) const {
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      const ServerPlan& server = plan_.servers[static_cast<size_t>(rank)];
      for (const LaunchGroup& group : server.groups) {
        if (group.after_round != round) continue;
        for (int64_t idx = group.task_begin; idx < group.task_end; ++idx) {
          const AttentionTask& task = server.tasks[static_cast<size_t>(idx)];
          const int64_t first = layout_.document(task.document).begin;
          for (int64_t row = task.queries.begin; row < task.queries.end; ++row) {
            if (!at(held, RowKind::kQuery, rank, first + row)) return false;
          }
          for (int64_t row = task.keys.begin; row < task.keys.end; ++row) {
            if (!at(held, RowKind::kKeyValue, rank, first + row)) return false;
          }
        }
      }
    }
    return true;
  }

  bool stays_in_home_piece(const Transfer& transfer) const {
    for (int64_t line = transfer.line.begin; line < transfer.line.end; ++line) {
      if (layout_.home(line) != layout_.home(transfer.line.begin)) return false;
    }
    return true;
  }

  // Results as pair counts; -1: the rank has no part of this row.
  std::string results() {
    Table<int64_t> pairs = make_table<int64_t>();
    for (auto& ranks : pairs) {
      for (auto& rows : ranks) std::fill(rows.begin(), rows.end(), -1);
    }
    compute(&pairs);
    Table<int64_t> computed = pairs;
    for (const Round& round : plan_.back) {
      Table<int64_t> before = pairs;
      Table<char> sent = make_table<char>();
      for (const Transfer& transfer : round.transfers) {
        if (!stays_in_home_piece(transfer)) return "a transfer leaves its home piece";
        for (int64_t line = transfer.line.begin; line < transfer.line.end; ++line) {
          if (at(before, transfer.kind, transfer.source, line) < 0) return "moved without a result";
          if (at(sent, transfer.kind, transfer.source, line)) return "moved twice";
          if (parts_of(computed, transfer.kind, line) > 1 && !transfer.partial)
            return "not partial";
          at(sent, transfer.kind, transfer.source, line) = 1;
          at(pairs, transfer.kind, transfer.source, line) = -1;
        }
      }
      for (const Transfer& transfer : round.transfers) {
        for (int64_t line = transfer.line.begin; line < transfer.line.end; ++line) {
          if (at(sent, transfer.kind, transfer.destination, line)) return "sent and received";
          int64_t& here = at(pairs, transfer.kind, transfer.destination, line);
          here = std::max<int64_t>(here, 0) + at(before, transfer.kind, transfer.source, line);
        }
      }
    }
    return results_at_home(pairs);
  }

  void compute(Table<int64_t>* pairs) const {
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      for (const AttentionTask& task : plan_.servers[static_cast<size_t>(rank)].tasks) {
        const int64_t first = layout_.document(task.document).begin;
        const auto add = [&](RowKind kind, int64_t row, int64_t count) {
          int64_t& value = at(*pairs, kind, rank, first + row);
          value = std::max<int64_t>(value, 0) + count;
        };
        for (int64_t row = task.queries.begin; row < task.queries.end; ++row) {
          add(RowKind::kQuery, row, intersect(task.keys, {0, row + 1}).size());
        }
        if (plan_.direction == Direction::kForward) continue;
        for (int64_t row = task.keys.begin; row < task.keys.end; ++row) {
          add(RowKind::kKeyValue, row, intersect(task.queries, {row, task.queries.end}).size());
        }
      }
    }
  }

  int64_t parts_of(Table<int64_t>& computed, RowKind kind, int64_t line) const {
    int64_t parts = 0;
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      parts += at(computed, kind, rank, line) >= 0 ? 1 : 0;
    }
    if (kind == RowKind::kKeyValue) {
      const Range document = layout_.document(layout_.document_at(line));
      parts += line < chunk_.begin ? 1 : 0;
      parts += document.end > chunk_.end ? 1 : 0;
    }
    return parts;
  }

  std::string results_at_home(Table<int64_t>& pairs) const {
    for (int64_t line = 0; line < layout_.num_tokens(); ++line) {
      const Range document = layout_.document(layout_.document_at(line));
      const Range queries = intersect(document, chunk_);
      for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
        const int64_t of_query = at(pairs, RowKind::kQuery, rank, line);
        const int64_t of_key = at(pairs, RowKind::kKeyValue, rank, line);
        if (rank != layout_.home(line).rank) {
          if (of_query >= 0 || of_key >= 0) return "a result is not at home";
          continue;
        }
        if (chunk_.contains(line) && of_query != line - document.begin + 1) return "query result";
        const bool has_key_result = !queries.empty() && line < queries.end;
        if (plan_.direction == Direction::kBackward && has_key_result &&
            of_key != intersect(queries, {line, queries.end}).size()) {
          return "key result";
        }
      }
    }
    return "";
  }

  const TokenLayout& layout_;
  const AttentionPlan& plan_;
  Range chunk_;
};

inline std::string find_violation_by_token(const TokenLayout& layout, const AttentionPlan& plan) {
  return PlanOracle(layout, plan).find_violation();
}

}  // namespace longspan
