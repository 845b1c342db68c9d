"""What helped: arms over seeds on the same data, with paired statistics and one page."""
