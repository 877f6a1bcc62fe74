"""The missions as environments of other libraries, one file and one extra for each."""
