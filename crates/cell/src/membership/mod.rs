//! Who is there: SWIM, suspicion, grace, verdicts.
