#pragma once

namespace tessera {

/// Lets the process outlive its log: from now on, what cannot be written to standard output or error is dropped. The
/// reader of a pipe may be gone, as `tee` is after Ctrl-C, or the log's disk may be full, which standard error is told
/// once. For verbs that have more to lose than text. A terminal is left as it is. Call it before threads start. Local.
void drop_unwritable_output();

}  // namespace tessera
