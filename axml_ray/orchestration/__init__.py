"""Ray tasks and Ray Train worker groups that build the label trees and fit the members of a run."""
