//! What fuzz targets do with their bytes. Tests include these modules by path, to do the same
//! with mutated files.

pub mod erofs;
pub mod ext4;
