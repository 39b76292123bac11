// The exact test that a chunk's tasks cover every (query, visible key) pair once.
//
// A task covers a rectangle of (query, key) pairs, and of it the pairs with key <= query. Per
// document: no two tasks share a visible pair (a sweep over queries with the active key ranges in a
// search tree), and the visible pairs add up to those of the chunk's queries. Disjoint and equal in
// number means equal. O(tasks log tasks).
//
//   verify_coverage(layout, plan);   // InternalError names the document, the ranges, the servers
//
// Requires that the tasks' queries are queries of the chunk and their keys lie in the document.
// Pure; any thread.
#pragma once

#include "planner/attention_plan.h"

namespace longspan {

void verify_coverage(const TokenLayout& layout, const AttentionPlan& plan);

}  // namespace longspan
