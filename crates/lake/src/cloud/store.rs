//! gs and az
