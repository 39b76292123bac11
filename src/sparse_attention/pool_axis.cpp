#include "sparse_attention/pool_axis.h"

#include "base/check.h"

namespace longspan {

PoolAxis::PoolAxis(const TokenLayout& layout, int64_t pool_tokens)
    : layout_(&layout), pool_tokens_(pool_tokens), first_pool_{0} {
  LONGSPAN_CHECK(pool_tokens >= 1, "pools of ", pool_tokens, " tokens");
  for (int32_t document = 0; document < layout.num_documents(); ++document) {
    first_pool_.push_back(first_pool_.back() + layout.document_tokens(document) / pool_tokens);
  }
}

// The number of pools whose last token stands before the position.
int64_t PoolAxis::pools_before(int64_t line_position) const {
  if (line_position == layout_->num_tokens()) return first_pool_.back();
  const int32_t document = layout_->document_at(line_position);
  return first_pool(document) + (line_position - layout_->document(document).begin) / pool_tokens_;
}

Range PoolAxis::pools(const Range& line) const {
  return {pools_before(line.begin), pools_before(line.end)};
}

Range PoolAxis::rows(int32_t document, const Range& pools_of_document) const {
  return layout_->to_line(
      document, {pools_of_document.begin * pool_tokens_, pools_of_document.end * pool_tokens_});
}

Range PoolAxis::rows_before(const Range& piece) const {
  if (pools(piece).empty()) return {piece.begin, piece.begin};
  const Range document = layout_->document(layout_->document_at(piece.begin));
  const int64_t position = piece.begin - document.begin;
  const int64_t begin = document.begin + position / pool_tokens_ * pool_tokens_;
  // The pool may be unfinished at the document's end; then the piece's pools are of later ones.
  if (begin + pool_tokens_ > std::min(document.end, piece.end)) return {piece.begin, piece.begin};
  return {begin, piece.begin};
}

Range PoolAxis::unfinished_rows(int chunk) const {
  const Range tokens = layout_->chunk(chunk);
  if (tokens.empty() || tokens.end == layout_->num_tokens()) return {tokens.end, tokens.end};
  const Range document = layout_->document(layout_->document_at(tokens.end));
  const int64_t position = tokens.end - document.begin;
  const int64_t begin = document.begin + position / pool_tokens_ * pool_tokens_;
  return {std::max(begin, tokens.begin), tokens.end};
}

}  // namespace longspan
