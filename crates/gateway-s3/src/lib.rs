//! S3 to the door.
