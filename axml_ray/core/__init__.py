"""What every room uses: ragged arrays, files, run layout, limits of the machine."""
